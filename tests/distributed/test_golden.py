"""The product's training against a few lines of plain torch: the loss of every step, and the weights after the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.spawn import spawn
from transformers import BertConfig, BertModel

from tests.distributed import golden
from tests.distributed.golden import Trajectory, by_hand, by_train, trial_of
from tests.store import make_store
from tests.tiny import make_tiny_backbone


def _backbone(folder: Path) -> Path:
    """Without dropout, and with weights so large that sentences are far apart."""
    make_tiny_backbone(folder)
    config = BertConfig.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sentences of 3 to 12 tokens; premises have several entailments, some triplets no contradiction or no neutral pair."""
    base = tmp_path_factory.mktemp("golden")
    r = np.random.default_rng(5)
    sentences = [[2, *r.integers(5, 60, r.integers(1, 11)).tolist(), 3] for _ in range(40)]
    # Sentence 0 has every role.
    triplets = [
        (k % 7, (17 + k) % 33, *(-1 if k % n == 0 else int(r.integers(0, 40)) if k % 7 else 0 for n in (3, 4)))
        for k in range(golden.TRIPLETS)
    ]
    assert all(0 in column for column in zip(*triplets, strict=True))
    pairs = [(*r.integers(0, 40, 2).tolist(), k % 3) for k in range(30)]
    return {
        "sentences": sentences,
        "triplets": triplets,
        "backbone": _backbone(base / "backbone"),
        "train": make_store(base / "train", sentences, triplets=triplets),
        "dev": make_store(base / "dev", sentences, pairs={"dev": pairs}),  # type: ignore[dict-item]
    }


def _trial(run: str, inputs: dict[str, Any]) -> golden.Trial:
    return trial_of(run, inputs["backbone"], inputs["train"], inputs["dev"])


@pytest.fixture(scope="module")
def by_two(inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trajectory]:
    """Every run by two real gloo processes."""
    out = tmp_path_factory.mktemp("two")
    spawn(golden.by_two, (inputs["backbone"], inputs["train"], inputs["dev"], out), 2)
    return {run: load_file(out / f"{run}.safetensors") for run in golden.RUNS}


def _assert_as_by_hand(ours: Trajectory, run: str, inputs: dict[str, Any]) -> None:
    trial = _trial(run, inputs)
    expected = by_hand(run, trial, inputs["sentences"], inputs["triplets"])
    start = by_hand(run, trial.model_copy(update={"learning_rate": 0.0}), inputs["sentences"], inputs["triplets"])
    # The steps count: without them the losses differ.
    assert float((expected["loss"] - start["loss"]).abs().max()) > 0.02 * float(start["loss"].mean())
    moved = {name: float((value - start[name]).norm()) for name, value in expected.items()}
    # The gradient of a key's bias is zero except for rounding: its step is compared with a share of the largest.
    loss, weights, floor = (1e-5, 1e-4, 1e-7) if run == "float32" else (1e-10, 1e-9, 1e-13)
    assert ours.keys() == expected.keys()
    torch.testing.assert_close(ours["loss"], expected["loss"], rtol=loss, atol=0)
    for name, value in expected.items():
        assert float((ours[name] - value).norm()) <= weights * moved[name] + floor * max(moved.values()), name


@pytest.mark.parametrize("run", golden.RUNS)
def test_one_worker_trains_as_plain_torch_does(run: str, inputs: dict[str, Any], tmp_path: Path) -> None:
    ours = by_train(run, _trial(run, inputs), inputs["train"], inputs["dev"], tmp_path)
    _assert_as_by_hand(ours, run, inputs)


@pytest.mark.parametrize("run", golden.RUNS)
def test_two_workers_train_as_plain_torch_does(run: str, inputs: dict[str, Any], by_two: dict[str, Trajectory]) -> None:
    _assert_as_by_hand(by_two[run], run, inputs)
