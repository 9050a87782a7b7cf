from __future__ import annotations

import numpy as np
import pytest

from pipeline.families.pairs.triplets import GlobalBatches


def distinct(rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.int32)


def batches_of(
    premises: np.ndarray, size: int, seed: int, surplus: np.ndarray | None = None, *, matched: bool = False
) -> GlobalBatches:
    zeros = np.zeros(len(premises), np.int32)
    return GlobalBatches(premises, zeros if surplus is None else surplus, size, seed, matched=matched)


def repeated(rows: int, seed: int = 0) -> np.ndarray:
    """Premises of which each has about two triplets, some of them six."""
    return np.random.default_rng(seed).integers(0, rows // 2, rows).astype(np.int32)


def surpluses(rows: int) -> np.ndarray:
    """Premises that are mostly longer, as in NLI: about one in eight is not."""
    return np.random.default_rng(1).integers(-2, 13, rows).astype(np.int32)


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(100, 32), (64, 32), (65, 32), (7, 8), (1000, 3)])
def test_every_row_once_an_epoch_in_batches_of_nearly_one_size(rows: int, size: int, matched: bool) -> None:
    batches = batches_of(repeated(rows), size, 5, surpluses(rows), matched=matched)
    steps = batches.steps_per_epoch
    for epoch in range(2):
        found = [batches.rows(epoch * steps + k) for k in range(steps)]
        assert sorted(np.concatenate(found).tolist()) == list(range(rows))
        sizes = [len(rows) for rows in found]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


def test_batches_depend_on_seed_and_step_and_nothing_else() -> None:
    def batch(seed: int, step: int) -> list[int]:
        return batches_of(repeated(100), 32, seed).rows(step).tolist()

    first = batch(5, 1)
    assert first == batch(5, 1)
    assert first != batch(6, 1)
    assert first != batch(5, 1 + batches_of(repeated(100), 32, 5).steps_per_epoch)


def test_rows_of_one_premise_in_a_batch_are_counted() -> None:
    premises = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4], dtype=np.int32)
    assert batches_of(premises, 9, 1).same_source(0) == 5 * 4


def test_without_wishes_an_epoch_is_a_permutation_of_seed_and_epoch_cut_into_parts() -> None:
    batches = batches_of(repeated(50), 8, 5)
    for epoch in range(2):
        parts = np.array_split(np.random.default_rng([5, epoch]).permutation(50), 7)
        for step, part in enumerate(parts):
            assert batches.rows(7 * epoch + step).tolist() == part.tolist()


def test_matched_batches_hold_nearly_one_surplus() -> None:
    surplus = surpluses(640)
    mixed, matched = (batches_of(distinct(640), 32, 3, surplus, matched=matched) for matched in (False, True))
    steps = matched.steps_per_epoch
    drawn = [matched.rows(step) for step in range(steps)]
    # 15 values over 20 batches: a batch holds two neighbouring values at most.
    assert max(int(np.ptp(surplus[rows])) for rows in drawn) <= 1
    assert max(int(np.ptp(surplus[mixed.rows(step)])) for step in range(steps)) > 8
    # The batches do not come in the order of their surplus, and not with the same rows every epoch.
    means = [float(surplus[rows].mean()) for rows in drawn]
    assert means != sorted(means)
    later = [set(matched.rows(step).tolist()) for step in range(steps, 2 * steps)]
    assert not any(set(rows.tolist()) in later for rows in drawn)


def test_matched_batches_come_in_any_order_also_where_they_are_uneven() -> None:
    # 1000 rows in 21 batches: 13 of 48 and 8 of 47.
    surplus = np.sort(surpluses(1000))
    batches = batches_of(distinct(1000), 48, 3, surplus, matched=True)
    steps = batches.steps_per_epoch
    for epoch in range(2):
        drawn = [batches.rows(epoch * steps + step) for step in range(steps)]
        assert [len(rows) for rows in drawn] == [48] * 13 + [47] * 8
        ends = [float(surplus[rows].mean()) for rows in drawn[-8:]]
        assert min(ends) < 4 < max(ends)
