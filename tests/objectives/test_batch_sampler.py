from __future__ import annotations

import numpy as np
import pytest

from pipeline.families.pairs.triplets import GlobalBatches


def repeated(rows: int, seed: int = 0) -> np.ndarray:
    """Premises of which each has about two triplets, some of them six."""
    return np.random.default_rng(seed).integers(0, rows // 2, rows).astype(np.int32)


@pytest.mark.parametrize(("rows", "size"), [(100, 32), (64, 32), (65, 32), (7, 8), (1000, 3)])
def test_every_row_once_an_epoch_in_batches_of_nearly_one_size(rows: int, size: int) -> None:
    batches = GlobalBatches(repeated(rows), size, 5)
    steps = batches.steps_per_epoch
    for epoch in range(2):
        found = [batches.rows(epoch * steps + k) for k in range(steps)]
        assert sorted(np.concatenate(found).tolist()) == list(range(rows))
        sizes = [len(rows) for rows in found]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


def test_batches_depend_on_seed_and_step_and_nothing_else() -> None:
    def batch(seed: int, step: int) -> list[int]:
        return GlobalBatches(repeated(100), 32, seed).rows(step).tolist()

    first = batch(5, 1)
    assert first == batch(5, 1)
    assert first != batch(6, 1)
    assert first != batch(5, 1 + GlobalBatches(repeated(100), 32, 5).steps_per_epoch)


def test_rows_of_one_premise_in_a_batch_are_counted() -> None:
    premises = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4], dtype=np.int32)
    assert GlobalBatches(premises, 9, 1).same_source(0) == 5 * 4


def test_an_epoch_is_a_permutation_of_seed_and_epoch_cut_into_parts() -> None:
    batches = GlobalBatches(repeated(50), 8, 5)
    for epoch in range(2):
        parts = np.array_split(np.random.default_rng([5, epoch]).permutation(50), 7)
        for step, part in enumerate(parts):
            assert batches.rows(7 * epoch + step).tolist() == part.tolist()
