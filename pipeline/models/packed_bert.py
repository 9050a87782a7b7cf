"""Pooled hidden states of a BERT-shaped encoder, computed over sentences laid end to end.

The weights stay in the Hugging Face module, and the mathematics is the same as in its forward pass. Three things differ:
- Layers that work on single tokens (all but attention) see one long row of tokens, without padding between sentences.
- Attention runs block by block; the sentences of a block have one length.
- If only first tokens are needed, the last layer computes only those.

Shapes: m sentences, T tokens including spare ones, H hidden size, c sentences of L tokens in a block.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.dropout import dropout, dropout_add
from pipeline.models.packed_attention import Heads, attend
from pipeline.models.packing import TokenBlocks

# Spare tokens, which nothing attends to, fill the row of tokens up to a multiple of this. A matrix kernel is built for one shape
# (on a CPU at a tenth of the cost of a product), and every batch has a different number of tokens.
_TOKENS_MULTIPLE = 64
# Outside training a row of few tokens has fewer spare ones: they would take most of the time of a short pair.
_FEW_TOKENS, _FEW_MULTIPLE = 256, 16
_BERT_SHAPED = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})


def is_bert_shaped(backbone: nn.Module) -> bool:
    """True if the functions of this module compute the same as the backbone's own forward pass."""
    config: Any = backbone.config
    return config.model_type in _BERT_SHAPED and not config.is_decoder and not config.add_cross_attention


def first_token_states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(m, H) last hidden state of each sentence's first token, in block order; dropout in training mode."""
    bert: Any = backbone
    *layers, last = bert.encoder.layer
    x = _embed(bert.embeddings, batch)
    masks = batch.masks
    x = _through(layers, x, batch, masks)
    attention = last.attention.self
    key, value = _linear(x, attention.key, attention.value)
    x = x.index_select(0, batch.first_tokens())
    return _feed_forward(last, _attend(attention, attention.query(x), key, value, batch, masks), x)


def token_states(backbone: nn.Module, batch: TokenBlocks) -> list[Tensor]:
    """The last hidden states of each block, (c, L, H); dropout in training mode."""
    bert: Any = backbone
    return batch.by_block(_through(bert.encoder.layer, _embed(bert.embeddings, batch), batch, batch.masks))


def mean_states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(m, H) mean of the last hidden states over each sentence's tokens, in block order; dropout in training mode."""
    return torch.cat(list(map(masked_mean, token_states(backbone, batch), batch.masks)))


def masked_mean(states: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the tokens of each sentence: states (c, L, H), mask (c, L) or None for no padding → (c, H)."""
    if mask is None:
        return states.mean(1)
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def _through(layers: Iterable[Any], x: Tensor, batch: TokenBlocks, masks: list[Tensor | None]) -> Tensor:
    """Apply layers to every token; (T, H) in and out."""
    for layer in layers:
        attention = layer.attention.self
        query, key, value = _linear(x, attention.query, attention.key, attention.value)
        x = _feed_forward(layer, _attend(attention, query, key, value, batch, masks), x)
    return x


def first_position(embeddings: Any) -> int:
    """The number of a sentence's first position. RoBERTa models count positions from the padding id + 1."""
    return embeddings.padding_idx + 1 if hasattr(embeddings, "padding_idx") else 0


def _embed(embeddings: Any, batch: TokenBlocks) -> Tensor:
    """(T, H)"""
    spare = -len(batch.ids) % _multiple(len(batch.ids))
    x = embeddings.word_embeddings(F.pad(batch.ids, (0, spare)))
    x = x + embeddings.position_embeddings(F.pad(_positions(embeddings, batch), (0, spare)))
    x = x + embeddings.token_type_embeddings.weight[0]
    return dropout(embeddings.LayerNorm(x), _rate(embeddings.dropout))


def _multiple(tokens: int) -> int:
    return _FEW_MULTIPLE if tokens <= _FEW_TOKENS and torch.is_inference_mode_enabled() else _TOKENS_MULTIPLE


def _positions(embeddings: Any, batch: TokenBlocks) -> Tensor:
    """(T,) numbers of the positions. In RoBERTa models the padding token takes none, also where a text holds it."""
    if not hasattr(embeddings, "padding_idx"):
        return batch.positions()
    number = embeddings.create_position_ids_from_input_ids
    return torch.cat([number(ids, embeddings.padding_idx).flatten() for ids, _ in batch.rectangles()])


def _attend(attention: Any, query: Tensor, key: Tensor, value: Tensor, batch: TokenBlocks, masks: list[Tensor | None]) -> Tensor:
    heads = Heads(attention.num_attention_heads, attention.attention_head_size, attention.scaling)
    return attend(query, key, value, batch.shapes, masks, heads, _rate(attention.dropout))


def _feed_forward(layer: Any, context: Tensor, x: Tensor) -> Tensor:
    """The rest of a layer after attention; `context` and `x` (T, H) → (T, H)."""
    after = layer.attention.output
    x = after.LayerNorm(dropout_add(_product(context, after.dense), x, _rate(after.dropout)))
    inner = layer.intermediate.intermediate_act_fn(_product(x, layer.intermediate.dense))
    return layer.output.LayerNorm(dropout_add(_product(inner, layer.output.dense), x, _rate(layer.output.dropout)))


def _linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers of the same input, computed as one product."""
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    return _affine(x, weight, bias).split([layer.out_features for layer in layers], 1)


def _product(x: Tensor, layer: nn.Linear) -> Tensor:
    return _affine(x, layer.weight, layer.bias)


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b. In float32 on a CPU outside training by oneDNN, as torch.compile does it, and else by `F.linear`.

    `F.linear` takes MKL there, which is slower on AMD's processors.
    """
    if (
        torch.is_inference_mode_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        # Not the sentences of the last layer: oneDNN builds a kernel for each number of rows.
        and not len(x) % _multiple(len(x))
        and torch.backends.mkldnn.is_available()
    ):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _rate(layer: nn.Dropout) -> float:
    return layer.p if layer.training else 0.0
