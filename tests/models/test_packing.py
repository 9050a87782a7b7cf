from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.token_store import TokenStore, open_store
from pipeline.models.packing import by_length, lay_out, padded_lengths, within_budget
from tests.store import random_stores


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return open_store(random_stores(tmp_path)[0])


@pytest.mark.parametrize("blocks", [1, 2, 4, 200])
def test_blocks_hold_each_sentence_and_nothing_else(store: TokenStore, blocks: int) -> None:
    asked = np.random.default_rng(1).integers(0, len(store), 50)
    rows = asked[by_length(store, asked, None)[0]]
    batch = lay_out(store, rows, blocks, "cpu")
    assert len(batch.shapes) <= blocks
    found = [ids[there].tolist() for block in batch.rectangles() for ids, there in zip(*block, strict=True)]
    assert found == [store[row].tolist() for row in rows]
    for block_ids, mask in batch.rectangles():
        assert mask.sum(1).max() == mask.shape[1]  # no column of padding alone
        assert (block_ids[~mask] == store.pad_id).all()
    assert batch.ids[batch.first_tokens()].tolist() == [sentence[0] for sentence in found]
    assert batch.positions().tolist() == [
        place for count, length in batch.shapes for _ in range(count) for place in range(length)
    ]
    # As many blocks as lengths: no padding, and no mask.
    assert (batch.mask is None) == (blocks == 200)
    assert batch.ids.numel() == sum(batch.sizes)


def test_padding_is_the_least_that_so_many_blocks_allow() -> None:
    random = np.random.default_rng(3)
    for _ in range(30):
        lengths = np.sort(random.integers(1, 12, random.integers(1, 25)))
        values = np.unique(lengths)
        for blocks in range(1, 5):
            padded = padded_lengths(lengths, blocks)
            assert (padded >= lengths).all()
            assert len(np.unique(padded)) <= blocks
            # Every choice of block lengths that covers the longest sentence.
            best = min(
                sum(min(c for c in chosen if c >= length) for length in lengths)
                for k in range(1, blocks + 1)
                for chosen in itertools.combinations(values, min(k, len(values)))
                if max(chosen) == lengths[-1]
            )
            assert padded.sum() == best


def test_parts_are_sorted_and_of_nearly_one_size(store: TokenStore) -> None:
    asked = np.random.default_rng(2).integers(0, len(store), 23)
    parts = by_length(store, asked, 6)
    assert [len(part) for part in parts] == [6, 6, 6, 5]
    assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    lengths = store.lengths_of(asked[np.concatenate(parts)])
    assert (np.diff(lengths) >= 0).all()
    assert [len(part) for part in by_length(store, asked, None)] == [23]
    assert [len(part) for part in by_length(store, asked, 100)] == [23]


def test_a_sentence_that_is_not_there_is_an_error(store: TokenStore) -> None:
    for bad in (-1, len(store)):
        with pytest.raises(IndexError, match="sentence indices must be in"):
            lay_out(store, np.array([0, bad]), 4, "cpu")


def test_token_budget_is_kept_and_nothing_is_lost() -> None:
    lengths = np.random.default_rng(2).integers(1, 60, 500)
    order = np.argsort(lengths, kind="stable")
    batches, left = list[NDArray[np.integer]](), order
    while len(left):
        batches.append(within_budget(lengths, left, 256))
        left = left[len(batches[-1]) :]
    assert np.array_equal(np.concatenate(batches), order)
    assert all(len(b) * lengths[b].max() <= 256 for b in batches)
    # As many as fit: the next sentence would break the budget.
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[following[0]] > 256
    # A sentence longer than the budget still gets its turn.
    assert within_budget(np.array([300, 400]), np.array([0, 1]), 256).tolist() == [0]
