"""Short trainings of a tiny model on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.training.trainer import Progress, train
from pipeline.trials.trial import Outcome, Trial
from pipeline.trials.trial_folder import TrialFolder
from tests.trial_of import trial_on

CPU = torch.device("cpu")


class Killed(BaseException):
    """Ends a training as a kill does."""


def make_trial(backbone: Path, stores: tuple[Path, Path], **train_changes: object) -> Trial:
    return trial_on(backbone, stores, 1e-3, 3, **{"eval_every": 4, "length_groups": 3, "epochs": 2, **train_changes})


def run(
    trial: Trial,
    stores: tuple[Path, Path],
    folder: Path,
    report: Callable[[Progress], None] = lambda _: None,
    pause: Callable[[int], bool] = lambda _: False,
) -> Outcome:
    """Train; `pause` is called in every step but the last, with the number of steps before it."""
    steps = iter(range(1000))
    return train(*stores, TrialFolder.local(trial, folder), report, CPU, pause=lambda: pause(next(steps)))


def dies_at(step: int) -> Callable[[Progress], None]:
    """A report that ends the training; a step's report comes before its checkpoint."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            raise Killed

    return report


def same_files(name: str, *folders: Path) -> bool:
    return len({(folder / name).read_bytes() for folder in folders}) == 1
