"""Prints what is known about trials before they run and their progress while they run, and logs it to MLflow.

Workers only write files and know nothing of MLflow; this module reads the files. If the tracking server is down for a while, no
training run and no metric is lost. Workers need no connection to the server, and it has one writer for any number of trials.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pipeline.distributed.precision import bf16_here
from pipeline.identity.digests import other_versions
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.trials.progress_log import describe
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import EarlyStopping, Timing, Trial, TrialResult, score_label
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

# Seconds between two looks at the folders.
_POLL = 0.5
# Of the trials that have not begun, so many are looked at each time: the next ones, and others in turn.
_NEXT, _IN_TURN = 8, 4


def report_known(
    known: Sequence[TrialResult], store: TrialStore, named: Callable[[Trial], str], tracker: Tracker, parent: str
) -> None:
    """Print which trials are not trained now, and why; add them to the parent, with the progress that their runs recorded."""
    reused: list[tuple[Trial, Timing]] = []
    logged = mlflow_runs.finished_trials(tracker, parent) if any(result.outcome for result in known) else ()
    for result in known:
        trial, name, folder = result.trial, named(result.trial), store.folder(result.trial)
        if result.outcome is not None:
            score = score_label(result.outcome.score_name)
            log.info(f"{name}: reused, trained before ({score} {result.outcome.best_score:.2f})")
            reused.append((trial, timing := folder.timing()))
            if trial.digest not in logged:
                mlflow_runs.ensure_trial(tracker, parent, trial, result.outcome, name, str(timing))
        elif result.stopped is not None:
            log.info(f"{name}: {result.stopped}, in an earlier run")
            run_id = mlflow_runs.trial_run(tracker, parent, trial, name)
            mlflow_runs.log_progress(tracker, run_id, folder.records().read(), trial.objective.score_name)
            mlflow_runs.stop_trial(tracker, run_id, result.stopped)
        elif (fault := folder.fault()) is not None:
            log.warning(f"{name} is trained again, its result cannot be used: {fault}")
    warn_reuse(reused)


def warn_reuse(reused: Sequence[tuple[Trial, Timing]]) -> None:
    """Print a warning if reused trials were trained with other library versions, and one if in another precision."""
    if others := other_versions(timing.versions for _, timing in reused):
        log.warning(f"trials that are reused were trained with {others}")
    precisions = [timing.precision for trial, timing in reused if trial.train.precision == "bf16"]
    here = "bf16" if precisions and bf16_here() else "fp32"
    if count := sum(precision != here for precision in precisions):
        log.warning(
            f"{count} of {len(reused)} trials that are reused were trained in another precision; this machine uses {here}"
        )


@contextmanager
def watched(
    trials: Sequence[tuple[TrialFolder, str]], tracker: Tracker, parent: str, rule: EarlyStopping | None = None, price: float = 0
) -> Iterator[None]:
    """Watch trials while the block runs; after the block, everything they wrote is in MLflow.

    Args:
        trials: the folder and the display name of each trial.
        rule: the early-stopping rule whose notes count.
        price: `cluster.price_per_hour`; 0: none is recorded.

    Raises:
        UserError: MLflow still fails when the block has ended; the trials' results are safe in their folders.
    """
    watches = [_Watch(folder.for_another_thread(), name, tracker, parent, rule) for folder, name in trials]
    meter = _Meter(watches, tracker, parent, price)
    stop, turns = threading.Event(), itertools.count()

    def loop() -> None:
        warned = False
        while not stop.wait(_POLL):
            try:
                meter.read(60.0)
                for watch in _worth_a_look(watches, next(turns)):
                    watch.look()
                warned = False
            except UserError as error:
                if not warned:
                    log.warning(f"{error}; training goes on, the metrics are kept and sent later")
                warned = True

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    ended_well = False
    try:
        yield
        ended_well = True
    finally:
        stop.set()
        thread.join()
        # If an error ended the block, it matters more than an unreachable server, so do not wait minutes for the server.
        with nullcontext() if ended_well else server.impatient():
            try:
                meter.read(0.0)
                for watch in watches:
                    watch.look(last=True)
            except UserError:
                # Do not try the other trials: each would wait for MLflow's full timeout. The next stage sends the rest.
                if ended_well:
                    raise


def _worth_a_look(watches: Sequence[_Watch], turn: int) -> list[_Watch]:
    """The trials that run, and some of those that have not begun: the next ones, and others in turn.

    A look at a trial in a remote storage is several requests, and most of a thousand trials have nothing to say for days.
    """
    left = [watch for watch in watches if not watch.ended]
    running = [watch for watch in left if watch.begun and not watch.stopped]
    waiting = [watch for watch in left if not watch.begun]
    others = waiting[_NEXT:] + [watch for watch in left if watch.stopped]
    start = turn * _IN_TURN % max(len(others), 1)
    return running + waiting[:_NEXT] + others[start : start + _IN_TURN]


class _Meter:
    """Counts the hours of the machines that trials run on (`cluster.price_per_hour`), and adds them to the runs in MLflow."""

    def __init__(self, watches: Sequence[_Watch], tracker: Tracker, parent: str, price: float) -> None:
        self._watches, self._tracker, self._parent, self._price = watches, tracker, parent, price
        self._counted = self._sent = time.monotonic()
        # What MLflow does not have yet, of each trial, and with None of all.
        self._hours = Counter[_Watch | None]()

    def read(self, every: float) -> None:
        """Count the time since the last call, on each machine in equal shares for the trials that run there. Send what was
        counted, if the last time was so many seconds ago."""
        now = time.monotonic()
        hours, self._counted = (now - self._counted) / 3600, now
        running = [watch for watch in self._watches if not (watch.stopped or watch.ended)]
        for machine in {one for watch in running for one in watch.machines}:
            there = [watch for watch in running if machine in watch.machines]
            self._hours.update({None: hours} | dict.fromkeys(there, hours / len(there)))
        if self._price and now - self._sent >= every:
            for watch, spent in [*self._hours.items()]:
                mlflow_runs.add_price(self._tracker, watch.run() if watch else self._parent, spent, spent * self._price)
                del self._hours[watch]
            self._sent = now


class _Watch:
    """The state of one watched trial: what has been printed, what MLflow has, and what is still to be logged."""

    def __init__(self, folder: TrialFolder, name: str, tracker: Tracker, parent: str, rule: EarlyStopping | None) -> None:
        log.debug(f"{name}: in {folder.path}")
        self._folder, self._name, self._rule = folder, name, rule
        self._tracker, self._parent = tracker, parent
        self._records = folder.records()
        # Steps of an earlier attempt are logged to MLflow but not printed.
        self._waiting = self._records.read()
        self._records.notes.clear()
        self._run_id: str | None = None
        self._logged: set[int] | None = None
        self.begun = self.stopped = self.ended = False
        self._where: dict[str, Any] = {}
        self.machines: set[str] = set()
        """Those that its workers were on at the last report; none before the first."""

    def look(self, *, last: bool = False) -> None:
        """Print and log new progress; end the MLflow run when the trial has ended."""
        if self.ended:
            return
        if last:
            self._folder.refresh()
        else:
            self._folder.pull_notes()
        new = self._records.read()
        self.begun |= bool(new)
        self.machines = {*(new[-1].get("machines") or ("this",))} if new else self.machines
        if new and new[-1]["step"] == new[-1]["total_steps"]:
            self._folder.refresh()
        while self._records.notes:
            log.warning(f"{self._name}: {self._records.notes.pop(0)}")
        for record in new:
            self._say_device(record)
            log.info(f"{self._name}  {describe(record)}")
        self._waiting += new
        reason = self._folder.failure()
        outcome = self._folder.outcome() if new or last or reason else None
        if outcome is not None:
            self._waiting = outcome.history
        # Log in batches, at every scoring: a call costs milliseconds, and nobody needs the curve more often.
        if self._waiting and (last or outcome or any(record["score"] is not None for record in self._waiting)):
            self._log()
        if outcome is not None:
            mlflow_runs.end_trial(self._tracker, self.run(), outcome, how=str(self._folder.timing()))
            self.ended = True
        elif reason is not None:
            mlflow_runs.fail_trial(self._tracker, self.run(), reason)
            self.ended = True
        elif self._rule is not None and not self.stopped and (stop := self._folder.stop(self._rule)) is not None:
            # The trial has not ended yet: its workers take a few more steps, and may even reach the last one.
            log.info(f"{self._name}  {stop}")
            self._log()
            mlflow_runs.stop_trial(self._tracker, self.run(), stop)
            self.stopped = True

    def _say_device(self, record: dict[str, Any]) -> None:
        """Print on which device and in which precision the trial runs, and why, when it begins and when that changes."""
        where = {key: record.get(key) for key in ("device", "precision")}
        if where["device"] is None or where == self._where:
            return
        self._where = where
        log.info(f"{self._name}  on {where['device']} in {where['precision']} ({record['precision_why']})")
        mlflow_runs.tag(self._tracker, self.run(), {f"gausscse.{key}": str(value) for key, value in where.items()})

    def run(self) -> str:
        """Id of the trial's run in MLflow."""
        if self._run_id is None:
            self._run_id = mlflow_runs.trial_run(self._tracker, self._parent, self._folder.trial, self._name)
        return self._run_id

    def _log(self) -> None:
        score = self._folder.trial.objective.score_name
        self._logged = mlflow_runs.log_progress(self._tracker, self.run(), self._waiting, score, self._logged)
        self._waiting = []
