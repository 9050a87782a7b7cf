"""Short trainings of a tiny model on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.training.trainer import Progress, train
from pipeline.trials.trial import Outcome, Trial
from pipeline.utils.atomic_io import read_json
from tests.outcomes import finished
from tests.trial_of import folder_at, trial_on

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
    return train(*stores, folder_at(trial, folder), report, CPU, pause=lambda: pause(next(steps)))


def dies_at(step: int) -> Callable[[Progress], None]:
    """A report that ends the training; a step's report comes before its checkpoint."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            raise Killed

    return report


def same_files(name: str, *folders: Path) -> bool:
    return len({(folder / name).read_bytes() for folder in folders}) == 1


def assert_resumes(trial: Trial, stores: tuple[Path, Path], folder: Path, *names: str) -> Outcome:
    """A run that ends at step 8, before its checkpoint, resumes from that of step 4 and ends as an undisturbed one does.

    With dropout and five steps an epoch, order, random states and moments must all come back.
    """
    whole, killed = folder / "whole", folder / "killed"
    outcome = run(trial, stores, whole)
    with pytest.raises(Killed):
        run(trial, stores, killed, dies_at(8))
    assert read_json(killed / "latest/state.json")["step"] == 4
    assert finished(killed, trial) is None
    assert run(trial, stores, killed) == finished(killed, trial) == outcome
    assert all(same_files(name, killed, whole) for name in names)
    assert not (killed / "latest").exists()
    return outcome
