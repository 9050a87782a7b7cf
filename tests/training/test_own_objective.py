"""The trainer with an objective that it knows nothing of: rows, batches, modules and development score of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.data.token_store import ROW_KINDS
from pipeline.families.pairs.params import ContrastiveParams, GaussianParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.trainer import Progress
from pipeline.utils.atomic_io import read_json
from tests.gates import wait_for
from tests.objectives.pairs import COLUMNS, KIND, SCORE, Own, PairsObjective
from tests.store import make_store
from tests.training.runs import Killed, assert_resumes, dies_at, make_trial, run

WEIGHTS = ("best/model.safetensors", "best/objective.safetensors")


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective is chosen below the parameters, so the union of objectives stays as it is."""
    monkeypatch.setattr(GaussianParams, "make", lambda _: PairsObjective())
    monkeypatch.setattr(ContrastiveParams, "score_name", SCORE)
    monkeypatch.setattr(ContrastiveParams, "row_kind", KIND)
    monkeypatch.setitem(ROW_KINDS, KIND, COLUMNS)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """Stores without a triplet and without a labelled pair: 40 pairs to train on, 24 to develop on."""
    r = np.random.default_rng(0)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(60)]
    train, dev = ([tuple(r.permutation(60)[:2].tolist()) for _ in range(rows)] for rows in (40, 24))
    return make_store(tmp_path / "train", texts, rows={KIND: train}), make_store(tmp_path / "dev", texts, rows={KIND: dev})


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 5}])
def test_a_resumed_run_ends_with_the_same_bits(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    assert assert_resumes(make_trial(tiny_backbone, stores, **changes), stores, tmp_path, *WEIGHTS).rows == 40


def test_its_modules_are_trained_and_kept_next_to_the_best_encoder(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    started: list[dict[str, torch.Tensor]] = []

    def seen(progress: Progress) -> None:
        # Called at step 4 before its checkpoint is written, so `latest` is the checkpoint of step 0, which a thread writes.
        if progress.step == 4:
            weights = tmp_path / "t/latest/best/objective.safetensors"
            wait_for(weights.exists, 60, "the checkpoint of step 0 is written")
            started.append(load_file(weights))

    trial = make_trial(tiny_backbone, stores, step_zero_eligible=True, epochs=4)
    outcome = run(trial, stores, tmp_path / "t", seen)
    assert outcome.best_step > 0
    found = load_file(tmp_path / "t/best/objective.safetensors")
    assert found.keys() == Own(32).state_dict().keys() == started[0].keys()
    for name, value in found.items():
        assert not torch.equal(value, started[0][name]), name
    assert read_json(tmp_path / "t/best/config.json")[SCORE] == max(
        entry["score"] for entry in outcome.history if entry["score"] is not None
    )
    losses = [entry["loss"] for entry in outcome.history if entry["loss"] is not None]
    assert losses[-1] < losses[0] - 0.1
    # Without its modules, the encoder is one like any other.
    assert GaussianEncoder.from_pretrained(tmp_path / "t/best").dim == 32


def test_its_modules_start_from_the_seed_of_the_trial(tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path) -> None:
    def begun(name: str, seed: int) -> dict[str, torch.Tensor]:
        trial = make_trial(tiny_backbone, stores, step_zero_eligible=True).model_copy(update={"seed": seed})
        with pytest.raises(Killed):
            run(trial, stores, tmp_path / name, dies_at(4))
        return load_file(tmp_path / name / "latest/model.safetensors")

    torch.manual_seed(1)
    one = begun("one", 3)
    torch.manual_seed(2)
    again, other = begun("again", 3), begun("other", 4)
    adapter = "objective.adapter.1.weight"
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one[adapter], other[adapter])
    # The heads have the same shape; they are drawn separately.
    assert not torch.equal(one[adapter], one["encoder.mean_head.weight"])
