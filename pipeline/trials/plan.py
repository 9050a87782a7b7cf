"""The plan of a run over a set of trials: which are finished, which were stopped early, which wait; and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.trials.store import TrialStore
from pipeline.trials.trial import EarlyStopping, Outcome, Stop, Timing, Trial, TrialResult
from pipeline.trials.trial_folder import TrialFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A trial and what its folder holds when the run begins."""

    folder: TrialFolder
    name: str
    """Its name on the terminal and in MLflow."""
    outcome: Outcome | None = None
    """Not None if the trial is reused."""
    timing: Timing | None = None
    """How the reused trial was trained."""
    stop: Stop | None = None
    """Not None if an earlier run stopped the trial under the same rule."""
    history: Sequence[dict[str, Any]] = ()
    """The progress of the stopped trial, as dictionaries of `Progress`."""
    fault: str | None = None
    """Why the outcome in the folder cannot be used, if there is one; the trial is trained again."""

    @property
    def trial(self) -> Trial:
        """The trial itself."""
        return self.folder.trial

    @staticmethod
    def of(folder: TrialFolder, name: str, rule: EarlyStopping | None) -> PlannedTrial:
        """Read a trial's folder."""
        if (outcome := folder.outcome()) is not None:
            return PlannedTrial(folder=folder, name=name, outcome=outcome, timing=folder.timing())
        if (stop := folder.stop(rule)) is not None:
            return PlannedTrial(folder=folder, name=name, stop=stop, history=folder.records().read())
        return PlannedTrial(folder=folder, name=name, fault=folder.fault())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The trials of a run, in the order in which the caller wants their results."""

    trials: Sequence[PlannedTrial]
    rule: EarlyStopping | None
    """Under another rule, an earlier stop does not count."""

    @staticmethod
    def of(trials: Sequence[Trial], store: TrialStore, rule: EarlyStopping | None, named: Callable[[Trial], str]) -> Plan:
        """Ask the trial store for these trials; `named` gives a trial's name on the terminal and in MLflow."""
        store.refresh(trials)
        return Plan(trials=[PlannedTrial.of(store.folder(trial), named(trial), rule) for trial in trials], rule=rule)

    @property
    def waiting(self) -> list[PlannedTrial]:
        """The trials to train: neither finished nor stopped early."""
        return [planned for planned in self.trials if planned.outcome is None and planned.stop is None]

    def results(self, stopped: Mapping[str, Stop]) -> list[TrialResult]:
        """What came of each trial, after those that waited were trained.

        Args:
            stopped: the trials that this run stopped early, by digest.
        """
        for planned in self.waiting:
            planned.folder.refresh()
        return [self._result(planned, stopped) for planned in self.trials]

    def _result(self, planned: PlannedTrial, stopped: Mapping[str, Stop]) -> TrialResult:
        folder = planned.folder
        outcome = planned.outcome or folder.outcome()
        failure = folder.failure()
        stop: Stop | None = None
        if outcome is None and failure is None:
            stop = planned.stop or stopped.get(planned.trial.digest) or folder.stop(self.rule)
        return TrialResult(
            trial=planned.trial,
            outcome=outcome,
            failure=None if outcome or stop else failure or "did not finish",
            reused=planned.outcome is not None,
            stopped=stop.reason if stop else None,
        )
