"""Encoding on a device, in batches sized by its memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.token_sets import PairSet
from pipeline.data.token_store import open_store
from pipeline.evaluation.encoding import encode_here
from pipeline.families.pairs.relation import fit_head
from pipeline.models.packing import tokens_at_once
from pipeline.models.token_head import TokenProjection
from pipeline.serving.model import Gaussians, Job, Model
from tests.relations import drawn_relation
from tests.store import random_stores
from tests.tiny import SENTENCES
from tests.trial_of import tiny_encoder


def test_a_store_is_encoded_as_on_the_cpu(device: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone)
    store = open_store(random_stores(tmp_path, sentences=2000)[0])
    rows = np.argsort(store.lengths, kind="stable")
    one_by_one = encoder.encode_rows(store, rows, batch_size=1)
    found = encoder.to(device).encode_rows(store, rows).to("cpu")
    torch.testing.assert_close(found.mean, one_by_one.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.log_var, one_by_one.log_var, rtol=1e-4, atol=1e-5)


def test_token_vectors_are_written_to_a_mapped_file_and_a_head_is_fitted_on_them(
    device: torch.device, tiny_backbone: Path, tmp_path: Path
) -> None:
    encoder = tiny_encoder(tiny_backbone)
    encoder.save_pretrained(tmp_path / "model")
    tokens, _ = random_stores(tmp_path, sentences=300)
    store = open_store(tokens)
    rows = np.argsort(store.lengths, kind="stable")
    states = encoder.encode_rows(store, rows, project=lambda states: states).tokens
    assert states is not None
    first = TokenProjection.principal(states.packed().table)
    # In the order of the store, made on the CPU.
    expected = first(states[torch.from_numpy(np.argsort(rows))].packed().table)
    with (tmp_path / "vectors").open("w+b") as table:
        (found,) = encode_here(tmp_path / "model", [tokens], gpu=device.type == "cuda", project=first, table=table)
    assert found.tokens is not None
    assert (tmp_path / "vectors").stat().st_size == found.tokens.table.numel() == expected.numel()
    assert found.tokens.length.tolist() == store.lengths.tolist()
    # A number near the middle may be rounded the other way.
    difference = (found.tokens.packed().table.int() - expected.int()).abs()
    assert difference.max() <= 1 and difference.float().mean() < 0.01
    draw = np.random.default_rng(1)
    premise, hypothesis = draw.integers(0, 300, (2, 60)).astype(np.int32)
    pairs = PairSet("pairs", premise, hypothesis, (np.arange(60) % 3).astype(np.int8), np.full(60, -1, np.int8))
    head = fit_head(found, pairs, first, first, 2, 1)
    assert all(value.isfinite().all() for value in head.state_dict().values())


def test_a_served_model_answers_two_calls_at_once_as_on_the_cpu(
    device: torch.device, tiny_backbone: Path, tmp_path: Path
) -> None:
    encoder = tiny_encoder(tiny_backbone)
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "model")
    model, expected = Model(tmp_path / "model", device.type), encoder.encode(SENTENCES)
    jobs = [Job("encode", [*SENTENCES]), Job("relation", [*SENTENCES], [*SENTENCES[::-1]])]
    with ThreadPoolExecutor(2) as pool:
        for encoded, relation in pool.map(model.answers, [jobs] * 4):
            assert isinstance(encoded.value, Gaussians)
            np.testing.assert_allclose(encoded.value.mean, expected.mean.numpy(), rtol=1e-4, atol=1e-5)
            theirs = torch.stack([*map(torch.as_tensor, encoder.relation(SENTENCES, SENTENCES[::-1]))], 1)
            np.testing.assert_allclose(np.array(relation.value), theirs.numpy(), rtol=0, atol=1e-3)


@pytest.mark.gpu
def test_a_batch_fits_in_the_memory_that_it_was_sized_by(gpu: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone).to(gpu)
    store = open_store(random_stores(tmp_path, sentences=60_000)[0])
    free = torch.cuda.mem_get_info(gpu)[0]
    assert tokens_at_once(gpu, encoder.backbone.config) > 4096
    torch.cuda.reset_peak_memory_stats(gpu)
    encoder.encode_rows(store, np.argsort(store.lengths, kind="stable"))
    assert torch.cuda.max_memory_allocated(gpu) < free / 2
