from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.data.token_store import TokenStore, open_store
from pipeline.models import encoder as module
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import CPU_TOKENS, by_length, lay_out, padded_lengths, tokens_at_once, within_budget
from tests.store import random_stores
from tests.trial_of import tiny_encoder


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


BERT_BASE = SimpleNamespace(hidden_size=768, intermediate_size=3072)


def test_tokens_follow_the_free_memory_and_the_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    # 12,288 numbers of four bytes for each token, in a quarter of the memory.
    for free, tokens in ((16e9, int(4e9 / (4 * 12288))), (8e9, 40690), (80e9, 1 << 18), (1e7, CPU_TOKENS)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 0))
        for config in (BERT_BASE, SimpleNamespace(hidden_size=768)):
            assert tokens_at_once(torch.device("cuda"), config) == tokens
    assert tokens_at_once(torch.device("cpu"), BERT_BASE) == 4096


def test_batches_are_halved_until_they_fit(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny_encoder(tiny_backbone)
    store = open_store(random_stores(tmp_path, sentences=4000)[0])
    rows = np.argsort(store.lengths, kind="stable")
    expected = encoder.encode_rows(store, rows)
    monkeypatch.setattr(module, "tokens_at_once", lambda device, config: 16384)
    plain, refused, taken = GaussianEncoder.forward, list[int](), list[int]()

    def forward(self: GaussianEncoder, batch: module.TokenBlocks, project: None) -> module.Gaussian:
        # As if another process had taken most of the memory by the second batch.
        if taken and len(batch.ids) > 5000:
            refused.append(len(batch.ids))
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken.append(len(batch.ids))
        return plain(self, batch, project)

    monkeypatch.setattr(GaussianEncoder, "forward", forward)
    found = encoder.encode_rows(store, rows)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.log_var, expected.log_var, rtol=1e-5, atol=1e-6)
    assert taken[0] > 8192 and len(refused) == 2 and max(taken[1:]) <= 4096
    # Below the fewest tokens it is an error.
    monkeypatch.setattr(module, "CPU_TOKENS", 8192)
    with pytest.raises(torch.OutOfMemoryError):
        encoder.encode_rows(store, rows)
