# pyright: reportUnknownMemberType=false
"""Backbones with rotary positions: ModernBERT and others, by padded sentences and by transformers' attention without padding.

The second way needs a GPU. Here a kernel in plain torch does what that of the package flash-attn does; tests/gpu has
the real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from pipeline.config.load import load_params
from pipeline.data.token_store import TokenStore, open_store
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models import flash
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import TokenBlocks
from tests.copies import PLAIN
from tests.distributed.gloo_worker import run
from tests.distributed.group import JOBS
from tests.flash_kernel import Kernel
from tests.models.test_packed_bert import SHAPE, batch_of, gradients
from tests.store import random_stores
from tests.tiny import DROPOUT, MODERNBERT, ROTARY, SENTENCES, make_tiny_backbone
from tests.training.runs import assert_resumes, make_trial


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return open_store(random_stores(tmp_path)[0])


@pytest.fixture(params=["padded", "end to end"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel | None:
    return None if request.param == "padded" else used(monkeypatch)


def used(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    made.install(monkeypatch)
    monkeypatch.setattr(flash, "takes", lambda *_: True)
    return made


def encoder_of(kind: str, pooling: str = "first") -> Any:
    torch.manual_seed(0)
    backbone = AutoModel.from_config(AutoConfig.for_model(kind, **{**SHAPE, **ROTARY[kind]}))
    params = load_params(PLAIN).model.model_copy(update={"pooling": pooling})
    return GaussianEncoder(backbone, tokenizer=None, params=params).double().eval()  # type: ignore[arg-type]


def one_by_one(backbone: Any, batch: TokenBlocks) -> list[Tensor]:
    """The states of each sentence, (l, H), by transformers, alone and thus without any mask or padding."""
    sentences = [row[there] for ids, mask in batch.rectangles() for row, there in zip(ids, mask, strict=True)]
    return [backbone(input_ids=sentence[None]).last_hidden_state[0] for sentence in sentences]


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("blocks", [1, 3, 200])
@pytest.mark.parametrize("kind", ROTARY)
def test_means_and_gradients_are_those_of_each_sentence_alone(
    store: TokenStore, kind: str, blocks: int, pooling: str, kernel: Kernel | None
) -> None:
    encoder, batch = encoder_of(kind, pooling), batch_of(store, blocks, 0)
    assert (batch.mask is None) == (blocks == 200) and len(batch.ids) > SHAPE["max_position_embeddings"]
    alone = one_by_one(encoder.backbone, batch)
    pooled = torch.stack([states[0] if pooling == "first" else states.mean(0) for states in alone])
    theirs = torch.tanh(encoder.mean_head(pooled))
    ours = encoder(batch).mean
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    expected, found = gradients(encoder, theirs), gradients(encoder, ours)
    # Some have layers that are not used, all of them the head of variances.
    assert found.keys() == expected.keys() and len(found) > 10
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9, msg=key)
    if kernel is not None:
        # One call a layer for all blocks; afterwards other callers get what they had.
        assert kernel.calls == SHAPE["num_hidden_layers"]
        assert encoder.backbone.config._attn_implementation == "sdpa"


def test_token_vectors_are_those_of_each_sentence_alone(store: TokenStore, kernel: Kernel | None) -> None:
    encoder, batch = encoder_of("modernbert"), batch_of(store, 3, 0)
    tokens = encoder(batch, lambda states: states).tokens
    assert isinstance(tokens, TokenVectors)
    found = tokens.packed()
    torch.testing.assert_close(found.table, torch.cat(one_by_one(encoder.backbone, batch)), rtol=1e-10, atol=1e-10)


def test_the_window_of_modernbert_matters(store: TokenStore) -> None:
    """What the tests above rely on."""
    encoder, batch = encoder_of("modernbert"), batch_of(store, 3, 0)
    before = encoder(batch).mean
    for layer in encoder.backbone.layers:
        if layer.attn.sliding_window is not None:
            layer.attention_type = "full_attention"
    assert (encoder(batch).mean - before).abs().max() > 1e-6


def test_dropout_of_attention_reaches_the_kernel(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    used(monkeypatch)
    encoder, batch = encoder_of("modernbert"), batch_of(store, 3, 0)
    without = encoder(batch).mean
    for layer in encoder.backbone.layers:
        layer.attn.attention_dropout = 0.5
    assert torch.equal(encoder(batch).mean, without)
    assert (encoder.train()(batch).mean != without).any(1).all()


@pytest.mark.parametrize("job", ["paper", "relation", "micro-batches"])
def test_a_training_step_has_the_gradients_of_padded_sentences(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_tiny_backbone(tmp_path / "backbone", **MODERNBERT)
    spec = {"params": str(PLAIN), "store": str(random_stores(tmp_path / "s")[0]), "backbone": str(backbone), "losses": True}
    padded = run(JOBS[job], spec, 1)
    kernel = used(monkeypatch)
    ours = run(JOBS[job], spec, 1)
    assert kernel.calls
    assert ours.keys() == padded.keys()
    largest = max(float(value.abs().max()) for value in padded.values())
    for name, value in padded.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-11 * largest, msg=name)


def test_gradient_caching_draws_the_same_dropout_again(tmp_path: Path, kernel: Kernel | None) -> None:
    backbone = make_tiny_backbone(tmp_path / "backbone", **MODERNBERT, **DROPOUT)
    spec = {"params": str(PLAIN), "store": str(random_stores(tmp_path / "s")[0]), "backbone": str(backbone)}
    found = run(JOBS["cached"], spec, 1)
    names = [name for name in found if not name.startswith("plain.")]
    assert len(names) > 10
    for name in names:
        torch.testing.assert_close(found[name], found[f"plain.{name}"], rtol=1e-9, atol=1e-11, msg=name)


def test_a_modernbert_is_trained_resumed_saved_and_encodes(
    tmp_path: Path, kernel: Kernel | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = random_stores(tmp_path / "stores")
    trial = make_trial(make_tiny_backbone(tmp_path / "backbone", **MODERNBERT, **DROPOUT), stores)
    outcome = assert_resumes(trial, stores, tmp_path, "best/model.safetensors")
    assert outcome.best_step > 0
    best = tmp_path / "whole/best"
    encoder = GaussianEncoder.from_pretrained(best)
    found = encoder.encode(SENTENCES)
    # How the training computed is not in the model's folder.
    assert encoder.backbone.config._attn_implementation == "sdpa"
    ids = [torch.tensor(encoder.tokenizer(sentence)["input_ids"]) for sentence in SENTENCES]
    assert max(map(len, ids)) > 6
    with torch.inference_mode():
        states = torch.cat([encoder.backbone(input_ids=row[None]).last_hidden_state[:, 0] for row in ids])
        torch.testing.assert_close(found.mean, torch.tanh(encoder.mean_head(states)), rtol=1e-5, atol=1e-6)
    monkeypatch.undo()
    pytest.importorskip("openvino", reason="the extra 'openvino' is not installed")
    exact = GaussianEncoder.from_pretrained(best, "openvino").encode(SENTENCES)
    torch.testing.assert_close(exact.mean, found.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(exact.log_var, found.log_var, rtol=0, atol=1e-5)


def test_only_in_bf16_on_a_gpu_with_the_package(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu, installed = torch.device("cpu"), torch.device("cuda"), True
    backbone, electra = encoder_of("modernbert").backbone, AutoModel.from_config(AutoConfig.for_model("electra", **SHAPE))
    monkeypatch.setattr(flash, "is_flash_attn_2_available", lambda: installed)
    assert not flash.takes(backbone, gpu)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert flash.takes(backbone, gpu)
        assert not flash.takes(electra, gpu)
        assert not flash.takes(backbone, cpu)
        installed = False
        assert not flash.takes(backbone, gpu)
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_each_kind_that_takes_this_way_is_tested() -> None:
    assert set(ROTARY) == flash._ROTARY
