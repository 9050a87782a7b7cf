"""The pooled hidden states of a BERT-shaped encoder, computed over sentences laid end to end.

The weights stay in the Hugging Face module and the mathematics is that of its forward pass; three things are done otherwise.
What works on single tokens (all of BERT but attention) sees one long row of tokens, without padding between sentences. Attention
goes block by block of sentences of one length. And where only first tokens are wanted, the last layer computes those alone.

Shapes: m sentences, T tokens with those filled up, H hidden size, c sentences of L tokens in a block.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.attention import Heads, attend
from pipeline.blocks import TokenBlocks, masked_mean
from pipeline.dropout import dropout, dropout_add

# The row of tokens is filled up to a multiple of this with tokens nothing looks at: matrix kernels are made for a shape (on a
# CPU, at a tenth of a product's cost), and every batch has another number of tokens.
_TOKENS_MULTIPLE = 64
_BERT_SHAPED = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})


def is_bert_shaped(backbone: nn.Module) -> bool:
    """Whether the functions here compute what the backbone itself would."""
    config: Any = backbone.config
    return config.model_type in _BERT_SHAPED and not config.is_decoder and not config.add_cross_attention


def first_token_states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(m, H) last hidden state of each sentence's first token, in the order of the blocks; dropout in training mode."""
    bert: Any = backbone
    masks = _masks(batch)
    *layers, last = bert.encoder.layer
    x = _through(layers, _embed(bert.embeddings, batch), batch, masks)
    attention = last.attention.self
    key, value = _linear(x, attention.key, attention.value)
    x = x.index_select(0, batch.first_tokens())
    return _feed_forward(last, _attend(attention, attention.query(x), key, value, batch, masks), x)


def mean_states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(m, H) mean over each sentence's tokens of the last hidden states, in the order of the blocks; dropout in training mode."""
    bert: Any = backbone
    masks = _masks(batch)
    x = _through(bert.encoder.layer, _embed(bert.embeddings, batch), batch, masks)
    blocks = x[: len(batch.ids)].split(batch.sizes)
    return torch.cat(
        [masked_mean(part.view(*shape, -1), mask) for part, shape, mask in zip(blocks, batch.shapes, masks, strict=True)]
    )


def _through(layers: Iterable[Any], x: Tensor, batch: TokenBlocks, masks: list[Tensor | None]) -> Tensor:
    """Layers computed for every token; (T, H) in and out."""
    for layer in layers:
        attention = layer.attention.self
        query, key, value = _linear(x, attention.query, attention.key, attention.value)
        x = _feed_forward(layer, _attend(attention, query, key, value, batch, masks), x)
    return x


def _embed(embeddings: Any, batch: TokenBlocks) -> Tensor:
    """(T, H)"""
    # RoBERTa and its kin count positions from the padding id on.
    offset = embeddings.padding_idx + 1 if hasattr(embeddings, "padding_idx") else 0
    spare = -len(batch.ids) % _TOKENS_MULTIPLE
    x = embeddings.word_embeddings(F.pad(batch.ids, (0, spare)))
    x = x + embeddings.position_embeddings(F.pad(batch.positions() + offset, (0, spare)))
    x = x + embeddings.token_type_embeddings.weight[0]
    return dropout(embeddings.LayerNorm(x), _rate(embeddings.dropout))


def _attend(attention: Any, query: Tensor, key: Tensor, value: Tensor, batch: TokenBlocks, masks: list[Tensor | None]) -> Tensor:
    heads = Heads(attention.num_attention_heads, attention.attention_head_size, attention.scaling)
    return attend(query, key, value, batch.shapes, masks, heads, _rate(attention.dropout))


def _feed_forward(layer: Any, context: Tensor, x: Tensor) -> Tensor:
    """What follows attention in a layer; (T, H) both and out."""
    after = layer.attention.output
    x = after.LayerNorm(dropout_add(after.dense(context), x, _rate(after.dropout)))
    inner = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))
    return layer.output.LayerNorm(dropout_add(layer.output.dense(inner), x, _rate(layer.output.dropout)))


def _linear(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Linear layers of one input, computed as one product."""
    joined = F.linear(x, torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))
    return joined.split([layer.out_features for layer in layers], 1)


def _rate(layer: nn.Dropout) -> float:
    return layer.p if layer.training else 0.0


def _masks(batch: TokenBlocks) -> list[Tensor | None]:
    """(c, L) of each block, None where nothing is padded."""
    if batch.mask is None:
        return [None] * len(batch.shapes)
    return [mask for _, mask in batch.rectangles()]
