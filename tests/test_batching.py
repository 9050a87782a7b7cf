from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from store import random_stores

from pipeline.batching import global_batch, group_by_length, steps_per_epoch, token_budget_batches
from pipeline.data.tokens import open_store


@pytest.mark.parametrize(("rows", "size"), [(100, 32), (64, 32), (65, 32), (7, 8), (1000, 3)])
def test_every_row_once_an_epoch_in_batches_of_nearly_one_size(rows: int, size: int) -> None:
    steps = steps_per_epoch(rows, size)
    for epoch in range(2):
        batches = [global_batch(rows, size, 5, epoch * steps + k) for k in range(steps)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
        sizes = {len(b) for b in batches}
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


def test_batches_depend_on_seed_epoch_and_nothing_else() -> None:
    first = global_batch(100, 32, 5, 1)
    assert np.array_equal(first, global_batch(100, 32, 5, 1))
    assert not np.array_equal(first, global_batch(100, 32, 6, 1))
    assert not np.array_equal(first, global_batch(100, 32, 5, 1 + steps_per_epoch(100, 32)))


@pytest.mark.parametrize("groups", [1, 4, 200])
def test_groups_hold_each_sentence_and_lead_back_to_the_order_asked(tmp_path: Path, groups: int) -> None:
    store = open_store(random_stores(tmp_path)[0])
    asked = np.random.default_rng(1).integers(0, len(store), 50).astype(np.int32)
    grouped = group_by_length(store, asked, groups)
    longest = max(g.ids.shape[1] for g in grouped.groups)
    whole = torch.cat([torch.nn.functional.pad(g.ids, (0, longest - g.ids.shape[1])) for g in grouped.groups])[grouped.inverse]
    expected, _ = store.pad(asked)
    assert torch.equal(whole, torch.from_numpy(expected))
    for group in grouped.groups:
        assert group.mask.sum(1).max() == group.ids.shape[1]  # no column of padding alone


def test_token_budget_is_kept_and_nothing_is_lost() -> None:
    lengths = np.random.default_rng(2).integers(1, 60, 500)
    order = np.argsort(lengths, kind="stable")
    batches = token_budget_batches(lengths, order, 256)
    assert np.array_equal(np.concatenate(batches), order)
    assert all(len(b) * lengths[b].max() <= 256 for b in batches)
    # A sentence longer than the budget still gets its turn.
    assert [len(b) for b in token_budget_batches(np.array([300, 400]), np.array([0, 1]), 256)] == [1, 1]
