from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.load import load_params
from pipeline.data.token_store import MISSING, Rows, TokenStore
from pipeline.families.batch_sampler import WINDOW, BlockOrder
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
    # The first call imports modules.
    TripletBatches(objective, rows, store, train, 64, 1).batch(0)
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


@pytest.mark.parametrize(("rows", "block"), [(1000, 16), (1003, 16), (5, 16), (1, 1), (256, 2), (40, 1)])
def test_blocks_are_a_permutation_whose_windows_are_few_blocks(rows: int, block: int) -> None:
    order = BlockOrder(rows, block, np.random.default_rng(7))
    whole = order[:].tolist()
    assert sorted(whole) == list(range(rows))
    # The rows of a block are within one window, of WINDOW blocks or fewer: from its first place to its last one, no row is of
    # a block that has rows elsewhere.
    places = np.argsort(whole)
    spans = [(places[k : k + block].min(), places[k : k + block].max()) for k in range(0, rows, block)]
    for first, last in spans:
        assert sum(other[0] <= last and other[1] >= first for other in spans) <= WINDOW
    # Any part is what the whole has there, in whatever order the parts are asked for.
    for start in reversed(range(0, rows, 7)):
        assert order[start : start + 7].tolist() == whole[start : start + 7]


def test_blocks_mix_rows_and_are_drawn_for_seed_and_epoch() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        batches = GlobalBatches(4000, repeated(4000).__getitem__, 32, seed, block_rows=50)
        steps = batches.steps_per_epoch
        # Backwards, as no run does: what came before does not matter.
        found = [batches.rows(number * steps + step) for step in reversed(range(steps))][::-1]
        assert sorted(np.concatenate(found).tolist()) == list(range(4000))
        return np.concatenate(found).tolist()

    first = epoch(5, 0)
    assert first == epoch(5, 0)
    assert len({tuple(order) for order in (first, epoch(5, 1), epoch(6, 0), epoch(6, 1))}) == 4
    # A window has 400 rows of eight blocks in random order, so neighbours are rarely of one block or of ascending rows.
    of_one_block = np.mean(np.diff(np.array(first) // 50) == 0)
    assert 0.08 < of_one_block < 0.17
    assert 0.4 < np.mean(np.diff(first) > 0) < 0.6
    # The blocks of a window are from all over the file.
    assert np.ptp(np.unique(np.array(first[:400]) // 50)) > 8


def test_a_batch_in_blocks_needs_few_shards() -> None:
    """Sentences are numbered in the order of the rows, so a block is in few shards; a random order needs nearly all of them."""
    n, block, batch, sentences_of_a_shard = 20_000, 250, 64, 1000
    premise = np.arange(n) * 2

    def most(block_rows: int | None) -> int:
        batches = GlobalBatches(n, premise.__getitem__, batch, 3, block_rows)
        return max(len(np.unique(premise[batches.rows(k)] // sentences_of_a_shard)) for k in range(2 * batches.steps_per_epoch))

    # A block of 500 sentences is in one shard; a batch may be cut across two windows.
    assert most(block) <= 2 * WINDOW
    assert most(None) > 30


def test_the_order_of_blocks_takes_no_memory_for_all_rows() -> None:
    tracemalloc.start()
    batches = GlobalBatches(10**8, lambda rows: rows, 512, 1, block_rows=1000)
    rows = [batches.rows(step) for step in (0, 1000, 150_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20
    assert all(len(np.unique(one // 1000)) <= 2 * WINDOW for one in rows)
