"""Watches trials while they run: prints their progress and carries it into MLflow.

Workers write files and know nothing of MLflow; this side reads the files. So a tracking server that is away for a while costs
neither a training run nor a metric, workers need no way to it, and there is one writer however many trials run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import tracking
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.progress import RecordReader, describe
from pipeline.tracking import Tracker
from pipeline.trial import FAILURE, Trial, finished

# Seconds between two looks at the folders.
_POLL = 0.5


@contextmanager
def watched(trials: Sequence[tuple[Trial, Path]], tracker: Tracker, parent: str, how: str) -> Iterator[None]:
    """Watch trials (with their folders) while the block runs; at its end everything they wrote is in MLflow.

    Args:
        how: what the tag `gausscse.how` of a finished trial says.

    Raises:
        UserError: MLflow still fails when the block has ended; the trials themselves are safe in their folders.
    """
    watches = [_Watch(trial, folder, tracker, parent, how) for trial, folder in trials]
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
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for watch in watches:
            watch.look(last=True)


class _Watch:
    """One trial: what has been printed, what MLflow has and what it is still to get."""

    def __init__(self, trial: Trial, folder: Path, tracker: Tracker, parent: str, how: str) -> None:
        self._trial, self._folder = trial, folder
        self._tracker, self._parent, self._how = tracker, parent, how
        self._records = RecordReader(folder)
        # Steps of an attempt before this one are told to MLflow, not to the terminal.
        self._waiting = self._records.read()
        self._run_id: str | None = None
        self._logged: set[int] = set()
        self._ended = False

    def look(self, *, last: bool = False) -> None:
        """Print and log what is new; end the run when the trial has ended."""
        if self._ended:
            return
        new = self._records.read()
        for record in new:
            print(f"{self._trial.name}  {describe(record)}", flush=True)
        self._waiting += new
        failure = self._folder / FAILURE
        outcome = finished(self._folder, self._trial) if new or last or failure.is_file() else None
        # In batches, at every scoring: a call costs milliseconds, and nobody looks at a curve ten times a minute.
        if self._waiting and (last or outcome or any(r["dev_pr_auc"] is not None for r in self._waiting)):
            self._log()
        if outcome is not None:
            self._waiting = outcome.history
            self._log()
            tracking.end_trial(self._tracker, self._run(), outcome, how=self._how)
            self._ended = True
        elif failure.is_file():
            tracking.fail_trial(self._tracker, self._run(), read_json(failure)["reason"])
            self._ended = True

    def _run(self) -> str:
        if self._run_id is None:
            self._run_id = tracking.trial_run(self._tracker, self._parent, self._trial)
            self._logged = tracking.logged_steps(self._tracker, self._run_id)
        return self._run_id

    def _log(self) -> None:
        run_id = self._run()
        waiting: list[dict[str, Any]] = [r for r in self._waiting if r["step"] not in self._logged]
        tracking.log_progress(self._tracker, run_id, waiting)
        self._logged |= {r["step"] for r in waiting}
        self._waiting = []
