"""The hidden states of the first tokens of a BERT-shaped encoder, computed over sentences laid end to end.

The weights stay in the Hugging Face module and the mathematics is that of its forward pass; three things are done otherwise.
What works on single tokens (all of BERT but attention) sees one long row of tokens, without padding between sentences. Attention
goes block by block of sentences of one length. And the last layer computes the first tokens only: nothing else of it is used.

Shapes: m sentences, T tokens, H hidden size, h heads of d dimensions, c sentences of L tokens in a block.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.blocks import TokenBlocks
from pipeline.dropout import dropout, dropout_add

_BERT_SHAPED = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})


def is_bert_shaped(backbone: nn.Module) -> bool:
    """Whether `first_token_states` computes what the backbone itself would."""
    config: Any = backbone.config
    return config.model_type in _BERT_SHAPED and not config.is_decoder and not config.add_cross_attention


def first_token_states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(m, H) last hidden state of each sentence's first token, in the order of the blocks; dropout in training mode."""
    bert: Any = backbone
    masks = _masks(batch)
    first = batch.first_tokens()
    x = _embed(bert.embeddings, batch)
    *layers, last = bert.encoder.layer
    for layer in layers:
        attention = layer.attention.self
        projected = _linear(x, attention.query, attention.key, attention.value).split(batch.sizes)
        contexts = [
            _attend(attention, mask, *block.view(*shape, 3, *_heads(attention)).permute(2, 0, 3, 1, 4).unbind())
            for block, shape, mask in zip(projected, batch.shapes, masks, strict=True)
        ]
        x = _feed_forward(layer, torch.cat(contexts), x)
    attention = last.attention.self
    projected = _linear(x, attention.key, attention.value).split(batch.sizes)
    x = x.index_select(0, first)
    queries = attention.query(x).split([count for count, _ in batch.shapes])
    contexts = [
        _attend(
            attention,
            mask,
            query.view(shape[0], 1, *_heads(attention)).transpose(1, 2),
            *block.view(*shape, 2, *_heads(attention)).permute(2, 0, 3, 1, 4).unbind(),
        )
        for query, block, shape, mask in zip(queries, projected, batch.shapes, masks, strict=True)
    ]
    return _feed_forward(last, torch.cat(contexts), x)


def _embed(embeddings: Any, batch: TokenBlocks) -> Tensor:
    """(T, H)"""
    # RoBERTa and its kin count positions from the padding id on.
    offset = embeddings.padding_idx + 1 if hasattr(embeddings, "padding_idx") else 0
    x = embeddings.word_embeddings(batch.ids)
    x = x + embeddings.position_embeddings(batch.positions() + offset) + embeddings.token_type_embeddings.weight[0]
    return dropout(embeddings.LayerNorm(x), _rate(embeddings.dropout))


def _attend(attention: Any, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot-product attention of one block: query (c, h, Q, d), key and value (c, h, L, d) → (c·Q, H)."""
    p = _rate(attention.dropout)
    if p and query.device.type == "cpu":
        scores = torch.matmul(query * attention.scaling, key.transpose(2, 3))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        context = torch.matmul(dropout(scores.softmax(-1), p), value)
    else:
        context = F.scaled_dot_product_attention(query, key, value, mask, p, scale=attention.scaling)
    return context.transpose(1, 2).reshape(-1, query.shape[1] * query.shape[3])


def _feed_forward(layer: Any, context: Tensor, x: Tensor) -> Tensor:
    """What follows attention in a layer; (T, H) both and out."""
    after = layer.attention.output
    x = after.LayerNorm(dropout_add(after.dense(context), x, _rate(after.dropout)))
    inner = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))
    return layer.output.LayerNorm(dropout_add(layer.output.dense(inner), x, _rate(layer.output.dropout)))


def _linear(x: Tensor, *layers: nn.Linear) -> Tensor:
    """Several linear layers of one input as one product, side by side."""
    return F.linear(x, torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def _heads(attention: Any) -> tuple[int, int]:
    return attention.num_attention_heads, attention.attention_head_size


def _rate(layer: nn.Dropout) -> float:
    return layer.p if layer.training else 0.0


def _masks(batch: TokenBlocks) -> list[Tensor | None]:
    """(c, 1, 1, L) of each block, None where it has no padding to hide."""
    if batch.mask is None:
        return [None] * len(batch.shapes)
    return [mask[:, None, None] for _, mask in batch.rectangles()]
