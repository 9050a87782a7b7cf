"""An outcome and its weights come from one run, whenever that run was killed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.identity.digests import library_versions
from pipeline.models.model_dir import content_digest
from pipeline.training.trainer import Progress, train
from pipeline.trials import locks
from pipeline.trials.trial import LATEST, OUTCOME, Outcome, Trial
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import read_json, write_json
from tests.outcomes import CPU, assert_together, finished, rising_trial, run
from tests.store import random_stores
from tests.trial_of import folder_at

Stores = tuple[Path, Path]
WEIGHTS = f"{BEST}/model.safetensors"


def unusable(folder: Path, trial: Trial) -> str | None:
    return folder_at(trial, folder).fault()


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return random_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def trial(tiny_backbone: Path, stores: Stores) -> Trial:
    return rising_trial(tiny_backbone, stores)


@pytest.fixture(scope="module")
def whole(trial: Trial, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The run that nothing disturbs, and its outcome."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(trial, stores, folder)


def killed_after_the_score_of(step: int, trial: Trial, stores: Stores, folder: Path) -> None:
    """A run that dies when the score is known but its checkpoint is not yet written."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            raise Killed

    with pytest.raises(Killed):
        train(*stores, folder_at(trial, folder), report, CPU)
    locks.tidy(folder)


def test_a_best_that_the_resumed_run_does_not_reach_is_not_its_best(
    trial: Trial, stores: Stores, whole: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assert_together(whole[0], trial, stores[1]).best_step == 8
    killed_after_the_score_of(8, trial, stores, tmp_path)
    # The rerun gets other numbers: with this rate, always the score of the last checkpoint.
    monkeypatch.setattr("pipeline.training.trainer.learning_rate_at", lambda *_: 0.0)
    run(trial, stores, tmp_path)
    assert assert_together(tmp_path, trial, stores[1]).best_step == 6


def test_the_untrained_model_is_kept_as_the_best(
    trial: Trial, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eligible = trial.model_copy(update={"train": trial.train.model_copy(update={"step_zero_eligible": True})})
    monkeypatch.setattr("pipeline.training.trainer.learning_rate_at", lambda *_: 0.0)
    for step in (0, 4):
        killed_after_the_score_of(step, eligible, stores, tmp_path)
    outcome = run(eligible, stores, tmp_path)
    assert assert_together(tmp_path, eligible, stores[1]).best_step == 0
    assert [entry["step"] for entry in outcome.history].count(0) == 1


@pytest.mark.parametrize("where", ["pipeline.trials.trial_folder.write_json", "pipeline.trials.trial_folder.shutil.rmtree"])
def test_a_run_killed_when_it_writes_its_outcome_ends_as_one_that_was_not(
    trial: Trial, stores: Stores, whole: tuple[Path, Outcome], tmp_path: Path, where: str
) -> None:
    removed = shutil.rmtree

    def dies(path: Path, *args: Any, **kwargs: Any) -> None:
        if Path(path).name in (OUTCOME, LATEST):
            raise Killed
        removed(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(where, dies)
        run(trial, stores, tmp_path)
    assert (finished(tmp_path, trial) is None) == (where == "pipeline.trials.trial_folder.write_json")
    # An outcome whose weights are damaged before the checkpoints are gone is written again from the last of them.
    file = tmp_path / WEIGHTS
    file.write_bytes(file.read_bytes()[:-4])
    assert finished(tmp_path, trial) is None
    locks.tidy(tmp_path)
    assert read_json(tmp_path / LATEST / "state.json")["step"] == 10
    assert run(trial, stores, tmp_path) == whole[1]
    assert (tmp_path / WEIGHTS).read_bytes() == (whole[0] / WEIGHTS).read_bytes()
    assert_together(tmp_path, trial, stores[1])


def test_an_outcome_and_weights_of_two_runs_are_unusable(
    trial: Trial, stores: Stores, whole: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(whole[0], mixed)
    assert unusable(mixed, trial) is None
    # The same trial on a machine that gets other numbers.
    monkeypatch.setattr("pipeline.training.trainer.learning_rate_at", lambda *_: 1e-5)
    run(trial, stores, tmp_path / "other")
    shutil.rmtree(mixed / BEST)
    shutil.copytree(tmp_path / "other" / BEST, mixed / BEST)
    assert finished(mixed, trial) is None
    why = f"{mixed / BEST}: its weights are not those that trial.json names; they belong to another run"
    assert unusable(mixed, trial) == why
    # An outcome that does not name its weights yet is of an older version.
    written = read_json(tmp_path / "other" / OUTCOME)
    assert written["outcome"].pop("weights") == content_digest(mixed / BEST)
    write_json(mixed / OUTCOME, written)
    assert unusable(mixed, trial) == f"{mixed / OUTCOME}: another version of this program wrote it"


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_nothing_random_comes_from_outside_the_seed(trial: Trial, stores: Stores, tmp_path: Path, pooling: str) -> None:
    model, short = trial.model.model_copy(update={"pooling": pooling}), trial.train.model_copy(update={"epochs": 1})
    pooled = trial.model_copy(update={"model": model, "train": short})
    weights: list[dict[str, torch.Tensor]] = []
    for name in ("one", "other"):
        # Dropout is on. All random numbers except the trial's own differ between the two.
        torch.manual_seed(len(name))
        np.random.seed(len(name))
        random.seed(name)
        run(pooled, stores, tmp_path / name)
        weights.append(load_file(tmp_path / name / WEIGHTS))
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_an_outcome_names_the_precision_and_versions_of_all_attempts(
    trial: Trial, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("pipeline.training.trainer.library_versions", lambda: {**library_versions(), "torch": "1.0"})
        killed_after_the_score_of(8, trial, stores, tmp_path)
    run(trial, stores, tmp_path)
    here = library_versions()
    timing = folder_at(trial, tmp_path).timing()
    assert timing.versions == {**here, "torch": f"1.0 and {here['torch']}"}
    assert timing.precision == "fp32"
