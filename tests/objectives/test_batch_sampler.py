from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.load import load_params
from pipeline.data.token_store import MISSING, Rows, TokenStore
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import GlobalBatches, TripletBatches
from tests.trial_of import ROOT


def repeated(rows: int, seed: int = 0) -> np.ndarray:
    """Premises of which each has about two triplets, some of them six."""
    return np.random.default_rng(seed).integers(0, rows // 2, rows).astype(np.int32)


@pytest.mark.parametrize(("rows", "size"), [(100, 32), (64, 32), (65, 32), (7, 8), (1000, 3)])
def test_every_row_once_an_epoch_in_batches_of_nearly_one_size(rows: int, size: int) -> None:
    batches = GlobalBatches(rows, repeated(rows).__getitem__, size, 5)
    steps = batches.steps_per_epoch
    for epoch in range(2):
        found = [batches.rows(epoch * steps + k) for k in range(steps)]
        assert sorted(np.concatenate(found).tolist()) == list(range(rows))
        sizes = [len(rows) for rows in found]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


def test_batches_depend_on_seed_and_step_and_nothing_else() -> None:
    def batch(seed: int, step: int) -> list[int]:
        return GlobalBatches(100, repeated(100).__getitem__, 32, seed).rows(step).tolist()

    first = batch(5, 1)
    assert first == batch(5, 1)
    assert first != batch(6, 1)
    assert first != batch(5, 1 + GlobalBatches(100, repeated(100).__getitem__, 32, 5).steps_per_epoch)


def test_rows_of_one_premise_in_a_batch_are_counted() -> None:
    premises = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4], dtype=np.int32)
    assert GlobalBatches(len(premises), premises.__getitem__, 9, 1).same_source(0) == 5 * 4


def test_an_epoch_is_a_permutation_of_seed_and_epoch_cut_into_parts() -> None:
    batches = GlobalBatches(50, repeated(50).__getitem__, 8, 5)
    for epoch in range(2):
        parts = np.array_split(np.random.default_rng([5, epoch]).permutation(50), 7)
        for step, part in enumerate(parts):
            assert batches.rows(7 * epoch + step).tolist() == part.tolist()


@pytest.mark.parametrize(("triplets", "most"), [("all", 6), ("hard", 14)])
def test_triplets_stay_in_their_file(triplets: str, most: int) -> None:
    """10⁸ of them have to fit into the memory of each worker: it keeps their order, 4 bytes each, and no copy of them."""
    n, piece = 400_000, 50_000
    numbers = np.arange(n, dtype=np.int32)
    columns = {"premise": numbers // 2 % 50, "entailment": numbers % 50, "neutral": np.full(n, MISSING, np.int32)}
    columns["contradiction"] = np.where(numbers % 3, numbers % 40, MISSING).astype(np.int32)
    rows = Rows({name: np.split(column, n // piece) for name, column in columns.items()}, Path("train"))
    store = TokenStore.of([[2, 5, 3]] * 50, 0)
    objective = make_objective("ent+con", "kl", 0.05)
    train = load_params(ROOT / "tests/plain.yaml").train.model_copy(update={"triplets": triplets})
    tracemalloc.start()
    batches = TripletBatches(objective, rows, store, train, 64, 1)
    batch = batches.batch(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / n < most
    for role, sentences in zip(objective.params.roles, batch.sentences, strict=True):
        assert sentences.tolist() == columns[role][batches.rows(3)].tolist()
    used = numbers if triplets == "all" else np.flatnonzero(columns["contradiction"] >= 0)
    order = used[np.random.default_rng([1, 0]).permutation(len(used))]
    assert np.concatenate([batches.rows(step) for step in range(batches.steps_per_epoch)]).tolist() == order.tolist()
    same = sum(k * (k - 1) for k in np.unique(columns["premise"][batches.rows(3)], return_counts=True)[1].tolist())
    assert batches.same_source(3) == same > 0
