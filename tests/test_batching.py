from __future__ import annotations

import numpy as np
import pytest

from pipeline.batching import GlobalBatches


def distinct(rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.int32)


def repeated(rows: int, seed: int = 0) -> np.ndarray:
    """Premises of which each has about two triplets, some of them six."""
    return np.random.default_rng(seed).integers(0, rows // 2, rows).astype(np.int32)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(100, 32), (64, 32), (65, 32), (7, 8), (1000, 3)])
def test_every_row_once_an_epoch_in_batches_of_nearly_one_size(rows: int, size: int, separate: bool) -> None:
    batches = GlobalBatches(repeated(rows), size, 5, separate=separate)
    steps = batches.steps_per_epoch
    for epoch in range(2):
        found = [batches.rows(epoch * steps + k) for k in range(steps)]
        assert sorted(np.concatenate(found).tolist()) == list(range(rows))
        sizes = [len(rows) for rows in found]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("separate", [False, True])
def test_batches_depend_on_seed_and_step_and_nothing_else(separate: bool) -> None:
    def batch(seed: int, step: int) -> list[int]:
        return GlobalBatches(repeated(100), 32, seed, separate=separate).rows(step).tolist()

    first = batch(5, 1)
    assert first == batch(5, 1)
    assert first != batch(6, 1)
    assert first != batch(5, 1 + GlobalBatches(repeated(100), 32, 5, separate=separate).steps_per_epoch)


def test_separate_keeps_triplets_of_one_premise_apart() -> None:
    premises = repeated(1000)
    kept, apart = (GlobalBatches(premises, 50, 3, separate=separate) for separate in (False, True))
    steps = 2 * kept.steps_per_epoch
    assert sum(kept.same_premise(step) for step in range(steps)) > 20
    assert sum(apart.same_premise(step) for step in range(steps)) == 0
    # Not the same neighbours every time.
    row = 17
    mates = [
        set(apart.rows(step).tolist())
        for epoch in range(2)
        for step in range(epoch * 20, epoch * 20 + 20)
        if row in apart.rows(step)
    ]
    assert len(mates[0] & mates[1]) < 12


def test_separate_leaves_no_more_than_must_be() -> None:
    # Five triplets of one premise over three batches: two batches hold two of them, that is 2 × 2 ordered pairs.
    premises = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4], dtype=np.int32)
    batches = GlobalBatches(premises, 3, 1, separate=True)
    assert sum(batches.same_premise(step) for step in range(3)) == 4


def test_same_premise_counts_ordered_pairs() -> None:
    batches = GlobalBatches(np.array([7, 7, 7, 1, 1, 2], dtype=np.int32), 6, 1, separate=False)
    assert batches.same_premise(0) == 3 * 2 + 2 * 1
    assert GlobalBatches(distinct(6), 6, 1, separate=False).same_premise(0) == 0
