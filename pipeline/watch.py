"""Watches trials while they run: prints their progress and carries it into MLflow.

Workers write files and know nothing of MLflow; this side reads the files. So a tracking server that is away for a while costs
neither a training run nor a metric, workers need no way to it, and there is one writer however many trials run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pipeline import tracking
from pipeline.errors import UserError
from pipeline.mirror import Mirror
from pipeline.places import look
from pipeline.progress import RECORDS, RecordReader, describe
from pipeline.tracking import Tracker
from pipeline.trial import FAILURE, STOPPED, EarlyStopping, Stop, Trial, failure, finished, stopped, timing

# Seconds between two looks at the folders.
_POLL = 0.5


@contextmanager
def watched(
    trials: Sequence[tuple[Trial, str, Mirror]], tracker: Tracker, parent: str, rule: EarlyStopping | None = None
) -> Iterator[None]:
    """Watch trials while the block runs; at its end everything they wrote is in MLflow.

    Args:
        trials: with what to call each, and its folder.
        rule: of the early stopping whose notes count.

    Raises:
        UserError: MLflow still fails when the block has ended; the trials themselves are safe in their folders.
    """
    watches = [_Watch(trial, name, mirror, tracker, parent, rule) for trial, name, mirror in trials]
    stop = threading.Event()

    def loop() -> None:
        told = False
        while not stop.wait(_POLL):
            try:
                for watch in watches:
                    watch.look()
                told = False
            except UserError as error:
                if not told:
                    print(f"warning: {error}; training goes on, the metrics are kept and sent later", file=sys.stderr)
                told = True

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    ended_well = False
    try:
        yield
        ended_well = True
    finally:
        stop.set()
        thread.join()
        # What ended the block otherwise matters more than a server that cannot be told, and nobody waits minutes for it.
        with nullcontext() if ended_well else tracking.impatient():
            try:
                for watch in watches:
                    watch.look(last=True)
            except UserError:
                # Not the next trial's turn: each would wait out MLflow's patience. The next stage sends what is missing.
                if ended_well:
                    raise


def tell_stopped(tracker: Tracker, parent: str, trial: Trial, name: str, folder: Path, stop: Stop) -> None:
    """Give the parent the run of a trial that an earlier pipeline run stopped, with what it wrote until then."""
    run_id = tracking.trial_run(tracker, parent, trial, name)
    logged = tracking.logged_steps(tracker, run_id)
    tracking.log_progress(tracker, run_id, [r for r in RecordReader(folder).read() if r["step"] not in logged])
    tracking.stop_trial(tracker, run_id, stop.reason)


class _Watch:
    """One trial: what has been printed, what MLflow has and what it is still to get."""

    def __init__(
        self, trial: Trial, name: str, mirror: Mirror, tracker: Tracker, parent: str, rule: EarlyStopping | None
    ) -> None:
        self._trial, self._name, self._folder, self._rule = trial, name, mirror.folder, rule
        self._mirror = mirror
        self._tracker, self._parent = tracker, parent
        self._records = RecordReader(mirror.folder)
        # Steps of an attempt before this one are told to MLflow, not to the terminal.
        self._waiting = self._records.read()
        self._records.notes.clear()
        self._run_id: str | None = None
        self._logged: set[int] = set()
        self._stopped = False
        self._ended = False

    def look(self, *, last: bool = False) -> None:
        """Print and log what is new; end the run when the trial has ended."""
        if self._ended:
            return
        if last:
            look(self._mirror)
        else:
            self._mirror.pull_at_times(RECORDS, FAILURE, STOPPED)
        new = self._records.read()
        if new and new[-1]["step"] == new[-1]["total_steps"]:
            look(self._mirror)
        while self._records.notes:
            print(f"warning: {self._name}: {self._records.notes.pop(0)}", file=sys.stderr, flush=True)
        for record in new:
            print(f"{self._name}  {describe(record)}", flush=True)
        self._waiting += new
        reason = failure(self._folder)
        outcome = finished(self._folder, self._trial) if new or last or reason else None
        # In batches, at every scoring: a call costs milliseconds, and nobody looks at a curve ten times a minute.
        if self._waiting and (last or outcome or any(r["dev_pr_auc"] is not None for r in self._waiting)):
            self._log()
        if outcome is not None:
            self._waiting = outcome.history
            self._log()
            tracking.end_trial(self._tracker, self._run(), outcome, how=str(timing(self._folder)))
            self._ended = True
        elif reason is not None:
            tracking.fail_trial(self._tracker, self._run(), reason)
            self._ended = True
        elif self._rule is not None and not self._stopped and (stop := stopped(self._folder, self._rule)) is not None:
            # Not the end: its workers take a few steps more, and may reach the last.
            print(f"{self._name}  {stop.reason}", flush=True)
            self._log()
            tracking.stop_trial(self._tracker, self._run(), stop.reason)
            self._stopped = True

    def _run(self) -> str:
        if self._run_id is None:
            self._run_id = tracking.trial_run(self._tracker, self._parent, self._trial, self._name)
            self._logged = tracking.logged_steps(self._tracker, self._run_id)
        return self._run_id

    def _log(self) -> None:
        run_id = self._run()
        waiting: list[dict[str, Any]] = [r for r in self._waiting if r["step"] not in self._logged]
        tracking.log_progress(self._tracker, run_id, waiting)
        self._logged |= {r["step"] for r in waiting}
        self._waiting = []
