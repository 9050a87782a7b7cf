"""Encoding on a device, in batches sized by its memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.token_store import open_store
from pipeline.models.packing import tokens_at_once
from tests.store import random_stores
from tests.trial_of import tiny_encoder


def test_a_store_is_encoded_as_on_the_cpu(device: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone)
    store = open_store(random_stores(tmp_path, sentences=2000)[0])
    rows = np.argsort(store.lengths, kind="stable")
    one_by_one = encoder.encode_rows(store, rows, batch_size=1)
    found = encoder.to(device).encode_rows(store, rows).to("cpu")
    torch.testing.assert_close(found.mean, one_by_one.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.log_var, one_by_one.log_var, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_batch_fits_in_the_memory_that_it_was_sized_by(gpu: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone).to(gpu)
    store = open_store(random_stores(tmp_path, sentences=60_000)[0])
    free = torch.cuda.mem_get_info(gpu)[0]
    assert tokens_at_once(gpu, encoder.backbone.config) > 4096
    torch.cuda.reset_peak_memory_stats(gpu)
    encoder.encode_rows(store, np.argsort(store.lengths, kind="stable"))
    assert torch.cuda.max_memory_allocated(gpu) < free / 2
