"""The encoder's own forward pass against the one of Hugging Face, on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModel, ElectraConfig, ElectraModel

from pipeline.config.load import load_params
from pipeline.data.token_store import TokenStore, open_store
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packed_bert import first_token_states, is_bert_shaped, mean_states
from pipeline.models.packing import TokenBlocks, by_length, lay_out
from tests.conftest import PLAIN
from tests.store import random_stores

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
ROBERTA = {"pad_token_id": 1}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "bert, other activation": {"hidden_act": "relu"},
    "bert, one layer": {"num_hidden_layers": 1},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
}
POOLED = {"first": first_token_states, "mean": mean_states}


def make(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.partition(",")[0], **{**SHAPE, **MODELS[name], **more})
    return AutoModel.from_config(config, add_pooling_layer=False).double()


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return open_store(random_stores(tmp_path)[0])


def batch_of(store: TokenStore, blocks: int, pad_id: int) -> TokenBlocks:
    rows = np.arange(30)
    batch = lay_out(store, rows[by_length(store, rows, None)[0]], blocks, "cpu")
    if batch.mask is not None:
        batch.ids[~batch.mask] = pad_id
    return batch


def reference(backbone: Any, batch: TokenBlocks, pooling: str = "first") -> Tensor:
    pooled: list[Tensor] = []
    for ids, mask in batch.rectangles():
        states = backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        pooled += [row[0] if pooling == "first" else row[there].mean(0) for row, there in zip(states, mask, strict=True)]
    return torch.stack(pooled)


def gradients(backbone: nn.Module, states: Tensor) -> dict[str, Tensor]:
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=states.dtype)
    backbone.zero_grad()
    (states * weight).sum().backward()
    return {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("blocks", [1, 3, 200])
@pytest.mark.parametrize("name", MODELS)
def test_states_and_gradients_are_those_of_hugging_face(store: TokenStore, name: str, blocks: int, pooling: str) -> None:
    backbone = make(name).eval()
    assert is_bert_shaped(backbone)
    batch = batch_of(store, blocks, backbone.config.pad_token_id)
    assert (batch.mask is None) == (blocks == 200)
    # Texts may hold the padding token, here at second place; it is masked as little as any other token.
    batch.ids[batch.first_tokens()[::3] + 1] = backbone.config.pad_token_id
    ours, theirs = POOLED[pooling](backbone, batch), reference(backbone, batch, pooling)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    expected = gradients(backbone, theirs)
    found = gradients(backbone, POOLED[pooling](backbone, batch))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("name", MODELS)
def test_in_float32_outside_training_states_are_those_of_hugging_face(store: TokenStore, name: str, pooling: str) -> None:
    backbone = make(name).float().eval()
    batch = batch_of(store, 4, backbone.config.pad_token_id)
    with torch.inference_mode():
        states = POOLED[pooling](backbone, batch)
    with torch.no_grad():
        torch.testing.assert_close(states, reference(backbone, batch, pooling), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_in_float32_outside_training_products_are_onednn_s(store: TokenStore) -> None:
    backbone = make("bert").float().eval()
    batch = batch_of(store, 4, 0)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        mean_states(backbone, batch)
        with torch.inference_mode():
            first_token_states(backbone, batch)
    products = sum(event.count for event in seen.key_averages() if event.key == "mkldnn::_linear_pointwise")
    # Four in each of three layers; in the last one only those of keys and values, which are one.
    assert products == 2 * 4 + 1


def test_training_mode_without_dropout_is_evaluation_mode(store: TokenStore) -> None:
    backbone = make("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = batch_of(store, 3, 0)
    assert torch.equal(first_token_states(backbone.train(), batch), first_token_states(backbone.eval(), batch))


@pytest.mark.parametrize("where", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_uses_the_default_generator(store: TokenStore, where: str) -> None:
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, where: 0.2}
    backbone, batch = make("bert", **rates).train(), batch_of(store, 3, 0)

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return first_token_states(backbone, batch)

    first = draw(1)
    assert torch.equal(first, draw(1))
    assert not torch.equal(first, draw(2))
    # Each sentence has draws of its own.
    assert (first != draw(2)).any(1).all()


@pytest.mark.slow
def test_dropout_blurs_as_much_as_hugging_face_does(store: TokenStore) -> None:
    # 400 draws of 30 sentences × 24 numbers each: their mean spread is known to about a percent.
    backbone, batch = make("bert", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train(), batch_of(store, 3, 0)
    torch.manual_seed(1)
    with torch.no_grad():
        ours = torch.stack([first_token_states(backbone, batch) for _ in range(400)])
        theirs = torch.stack([reference(backbone, batch) for _ in range(400)])
    assert ours.std(0).mean().item() == pytest.approx(theirs.std(0).mean().item(), rel=0.03)
    assert (ours.mean(0) - theirs.mean(0)).abs().mean() < 0.1 * theirs.std(0).mean()


@pytest.mark.parametrize("pooling", POOLED)
def test_another_architecture_goes_through_its_own_forward_pass(store: TokenStore, pooling: str) -> None:
    torch.manual_seed(0)
    backbone = ElectraModel(ElectraConfig(**{**SHAPE, "embedding_size": 24})).eval()
    assert not is_bert_shaped(backbone) and not is_bert_shaped(make("bert", is_decoder=True))
    params = load_params(PLAIN).model.model_copy(update={"pooling": pooling})
    encoder = GaussianEncoder(backbone, tokenizer=None, params=params).eval()  # type: ignore[arg-type]
    batch = batch_of(store, 3, 0)
    expected = torch.tanh(encoder.mean_head(reference(backbone, batch, pooling)))
    torch.testing.assert_close(encoder(batch).mean, expected, rtol=1e-5, atol=1e-6)
