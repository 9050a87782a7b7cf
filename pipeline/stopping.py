"""Early stopping: which trials of a grid are not worth going on with, told by notes in their folders.

The decision is Ray Tune's (its ASHA scheduler, one for each set of trials that differ in nothing but their point of the grid);
carrying it out is ours. Tune would kill the trial's processes, in the middle of a checkpoint as the case may be, and start the
next trial beside those that are still dying. Instead the workers find the note at their next report, leave the loop together, and
the run ends as one does that is finished; only then is its place free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Protocol

from pipeline.files import sha256_json, write_json
from pipeline.places import Places
from pipeline.progress import RecordReader
from pipeline.trial import STOPPED, EarlyStopping, Stop, Trial, finished

# What trials that compete may differ in (and the seeds that are trained in the end, which are not of a trial). Not the seed: the
# seeds of one point would stop each other, and a point that lacks one cannot be chosen.
_POINT: Any = {"learning_rate": True, "batch_size": True, "train": {"seeds"}}


class Halving(Protocol):
    """The part of `ray.tune.schedulers.ASHAScheduler` that decides; of Tune's trial it reads the id alone."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None: ...
    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str: ...


def scorings(trial: Trial, step: int) -> int:
    """How many scorings of a trial there are up to a scored step; that of the untrained model is none."""
    return -(-step // trial.train.eval_every)


class Stopper:
    """Hears of every scoring of the trials of a grid and stops those that fall behind.

    Trials that an earlier run has finished, stopped or left half-done are rivals too, with all their scorings.
    """

    def __init__(
        self, trials: Sequence[Trial], places: Places, rule: EarlyStopping, halving: Callable[[EarlyStopping], Halving]
    ) -> None:
        self._places, self._rule = places, rule
        self._trials = {trial.digest: trial for trial in trials}
        self._halvings: dict[str, Halving] = {}
        self._group: dict[str, Halving] = {}
        self.stopped: dict[str, Stop] = {}
        """What has been stopped since, by digest."""
        for trial in trials:
            recipe = sha256_json(trial.model_dump(mode="json", exclude=_POINT))
            if recipe not in self._halvings:
                self._halvings[recipe] = halving(rule)
            self._group[trial.digest] = self._halvings[recipe]
            self._group[trial.digest].on_trial_add(None, SimpleNamespace(trial_id=trial.digest))
            outcome = finished(places.folder(trial), trial)
            for record in outcome.history if outcome else RecordReader(places.folder(trial)).read():
                # What was decided on these has been decided.
                self._decide(trial, record)

    def scored(self, digest: str, record: dict[str, Any]) -> None:
        """Take in a scoring (a dictionary of `Progress`); leaves a note in the trial's folder if it ends the trial."""
        trial = self._trials[digest]
        if digest in self.stopped or not self._decide(trial, record) or record["step"] == record["total_steps"]:
            return
        count = scorings(trial, record["step"])
        stop = Stop(
            step=record["step"],
            best_dev_pr_auc=record["best_dev_pr_auc"],
            reason=(
                f"stopped early at step {record['step']}: development PR-AUC {record['dev_pr_auc']:.2f} at scoring {count} "
                f"is not among the best 1/{self._rule.reduction_factor} of the trials that came so far"
            ),
            early_stopping=self._rule,
        )
        self.stopped[digest] = stop
        write_json(self._places.folder(trial) / STOPPED, asdict(stop))
        self._places.mirror(trial).push(STOPPED)

    def _decide(self, trial: Trial, record: dict[str, Any]) -> bool:
        count = scorings(trial, record["step"])
        if count == 0 or record["dev_pr_auc"] is None:
            return False
        result = {"scorings": count, "dev_pr_auc": record["dev_pr_auc"]}
        return self._group[trial.digest].on_trial_result(None, SimpleNamespace(trial_id=trial.digest), result) == "STOP"
