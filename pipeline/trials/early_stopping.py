"""Early stopping: decide which trials of a grid to stop, and leave notes in their folders.

Ray Tune's ASHA scheduler decides, with one scheduler for each set of trials that differ only in their point of the grid. We carry
out the decision. Tune would kill the trial's processes, possibly in the middle of a checkpoint, and start the next trial while
they are still dying. Instead, the workers find the note at their next report, leave the loop together, and the run ends like a
finished one; only then is its place free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pipeline.trials.trial import EarlyStopping, Outcome, Trial, score_label
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import sha256_json

# What competing trials may differ in, plus the list of final seeds, which does not affect a trial. The trial's own seed is not
# included: the seeds of a point would stop each other, and a point that lacks a seed cannot be chosen.
_POINT: Any = {"learning_rate": True, "batch_size": True, "train": {"seeds"}}


def scorings(trial: Trial, step: int) -> int:
    """Number of scorings of a trial up to a scored step, not counting the untrained model."""
    return -(-step // trial.train.eval_every)


class Stopper:
    """Receives every scoring of the trials of a grid and stops the trials that fall behind.

    Trials that an earlier run finished, stopped or left incomplete also compete, with all their scorings.

    Args:
        folders: of all trials, with their outcomes, which take long to read again.
        halving: makes an `ray.tune.schedulers.ASHAScheduler`; of Tune's trials it reads only the id.
    """

    def __init__(
        self,
        folders: Sequence[tuple[TrialFolder, Outcome | None]],
        rule: EarlyStopping,
        halving: Callable[[EarlyStopping], Any],
    ) -> None:
        self._rule = rule
        self._folders = {folder.trial.digest: folder for folder, _ in folders}
        self._group: dict[str, Any] = {}
        self.stopped: set[str] = set()
        """The trials that this object has stopped, by digest."""
        halvings: defaultdict[str, Any] = defaultdict(lambda: halving(rule))
        for folder, outcome in folders:
            trial = folder.trial
            self._group[trial.digest] = halvings[sha256_json(trial.model_dump(mode="json", exclude=_POINT))]
            self._group[trial.digest].on_trial_add(None, SimpleNamespace(trial_id=trial.digest))
            for record in outcome.history if outcome else folder.records().read():
                # Earlier decisions on these records are final, so the answer is ignored.
                self._decide(trial, record)

    def scored(self, digest: str, record: dict[str, Any]) -> None:
        """Process a scoring (a dictionary of `Progress`); if it ends the trial, write a note to the trial's folder."""
        folder = self._folders[digest]
        if digest in self.stopped or not self._decide(folder.trial, record) or record["step"] == record["total_steps"]:
            return
        count = scorings(folder.trial, record["step"])
        label = score_label(folder.trial.objective.score_name)
        reason = (
            f"stopped early at step {record['step']}: {label} {record['score']:.2f} at scoring {count} "
            f"is not among the best 1/{self._rule.reduction_factor} of the trials that got this far"
        )
        self.stopped.add(digest)
        folder.note_stop(reason, self._rule)

    def _decide(self, trial: Trial, record: dict[str, Any]) -> bool:
        count = scorings(trial, record["step"])
        if count == 0 or record["score"] is None:
            return False
        result = {"scorings": count, "score": record["score"]}
        return self._group[trial.digest].on_trial_result(None, SimpleNamespace(trial_id=trial.digest), result) == "STOP"
