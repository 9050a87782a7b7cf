from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.config.load import load_params
from pipeline.data.token_store import open_store
from pipeline.models import encoder as module
from pipeline.models.encode_budget import CPU_TOKENS, tokens_at_once, tokens_for
from pipeline.models.encoder import GaussianEncoder
from tests.conftest import PLAIN
from tests.store import random_stores

BERT_BASE = SimpleNamespace(hidden_size=768, intermediate_size=3072)


def test_tokens_follow_the_free_memory_and_the_backbone() -> None:
    # 12,288 numbers of four bytes for each token, in a quarter of the memory.
    assert tokens_for(16_000_000_000, BERT_BASE) == int(4e9 / (4 * 12288)) == 81380
    assert tokens_for(16_000_000_000, SimpleNamespace(hidden_size=768)) == 81380
    assert tokens_for(8_000_000_000, BERT_BASE) == 40690
    assert tokens_for(80_000_000_000, BERT_BASE) == 1 << 18
    assert tokens_for(10_000_000, BERT_BASE) == CPU_TOKENS
    assert tokens_at_once(torch.device("cpu"), BERT_BASE) == 4096


@pytest.fixture
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    model = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24})
    return GaussianEncoder.from_backbone(model, 1)


def test_batches_are_halved_until_they_fit(encoder: GaussianEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(random_stores(tmp_path, sentences=4000)[0])
    rows = np.argsort(store.lengths, kind="stable")
    expected = encoder.encode_rows(store, rows)
    monkeypatch.setattr(module, "tokens_at_once", lambda device, config: 16384)
    plain, refused, taken = GaussianEncoder.forward, list[int](), list[int]()

    def forward(self: GaussianEncoder, batch: module.TokenBlocks) -> module.Gaussian:
        # As if another process had taken most of the memory by the second batch.
        if taken and len(batch.ids) > 5000:
            refused.append(len(batch.ids))
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken.append(len(batch.ids))
        return plain(self, batch)

    monkeypatch.setattr(GaussianEncoder, "forward", forward)
    found = encoder.encode_rows(store, rows)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.log_var, expected.log_var, rtol=1e-5, atol=1e-6)
    assert taken[0] > 8192 and len(refused) == 2 and max(taken[1:]) <= 4096
    # Below the fewest tokens it is an error.
    monkeypatch.setattr(module, "CPU_TOKENS", 8192)
    with pytest.raises(torch.OutOfMemoryError):
        encoder.encode_rows(store, rows)
