"""Scaled dot-product attention within blocks of sentences of equal padded length.

Shapes: c sentences of L tokens in a block; h heads of d dimensions, H = h·d; T tokens and R queries in all blocks together.
T and R may include spare rows after the last block; they are ignored and give zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.dropout import keep_mask


class Heads(NamedTuple):
    """Number and size of the heads of an attention layer, and the factor of its scores."""

    number: int
    dim: int
    scaling: float


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shapes: tuple[tuple[int, int], ...],
    masks: list[Tensor | None],
    heads: Heads,
    p: float,
) -> Tensor:
    """Softmax attention with dropout p on the attention weights.

    Args:
        query: (R, H), block after block; one query for each token (R = T) or one for each sentence.
        key: (T, H).
        value: (T, H).
        shapes: (c, L) of each block.
        masks: (c, L) of each block, True on tokens; None for a block without padding.

    Returns:
        (R, H)
    """
    asking = [(count, length if len(query) == len(key) else 1) for count, length in shapes]
    if p and query.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):
            context: Tensor = _DropoutAttention.apply(query, key, value, asking, shapes, masks, heads, p)  # type: ignore[assignment]
        return context
    contexts: list[Tensor] = []
    for q, k, v, (count, n), (_, length), mask in zip(
        _blocks(query, asking), _blocks(key, shapes), _blocks(value, shapes), asking, shapes, masks, strict=True
    ):
        q, k, v = (t.view(count, size, heads.number, heads.dim).transpose(1, 2) for t, size in ((q, n), (k, length), (v, length)))
        seen = None if mask is None else mask[:, None, None]
        block = F.scaled_dot_product_attention(q, k, v, seen, p, scale=heads.scaling)
        contexts.append(block.transpose(1, 2).reshape(count * n, -1))
    rest = len(query) - sum(len(context) for context in contexts)
    return torch.cat((*contexts, query.new_zeros((rest, query.shape[1]))))


def _blocks(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """The rows of each block, without spare rows. A single split, so that its gradient is one copy and not one per block."""
    sizes = [count * length for count, length in shapes]
    return flat.split([*sizes, len(flat) - sum(sizes)])[:-1]


class _DropoutAttention(torch.autograd.Function):
    """Attention with dropout on a CPU, in float32 at least, whatever the type of the input.

    On a CPU torch's fused kernel has no dropout. Its plain path builds a new bfloat16 kernel for every block shape, and every
    batch has new shapes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        asking: list[tuple[int, int]],
        shapes: tuple[tuple[int, int], ...],
        masks: list[Tensor | None],
        heads: Heads,
        p: float,
    ) -> Tensor:
        context = torch.empty_like(query)
        kept: list[Tensor] = []
        scale = 1.0
        row = token = 0
        for (count, n), (_, length), mask in zip(asking, shapes, masks, strict=True):
            rows, tokens = slice(row, row := row + count * n), slice(token, token := token + count * length)
            q, k, v = _split(query[rows], count, heads), _split(key[tokens], count, heads), _split(value[tokens], count, heads)
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(heads.scaling)
            if mask is not None:
                by_sentence = weights.view(count, -1, length)
                by_sentence.masked_fill_(~mask[:, None], float("-inf"))
            weights.sub_(weights.amax(2, keepdim=True)).exp_()
            weights.div_(weights.sum(2, keepdim=True))
            keep, scale = keep_mask(weights, p)
            kept += [weights, keep]
            context[rows] = _join(torch.bmm(weights * keep, v).mul_(scale), count)
        context[row:] = 0
        ctx.save_for_backward(query, key, value, *kept)
        ctx.asking, ctx.shapes, ctx.heads, ctx.scale = asking, shapes, heads, scale
        return context

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        row = token = 0
        for (count, n), (_, length), weights, keep in zip(ctx.asking, ctx.shapes, kept[::2], kept[1::2], strict=True):
            rows, tokens = slice(row, row := row + count * n), slice(token, token := token + count * length)
            q, k, v, d_context = (_split(t, count, ctx.heads) for t in (query[rows], key[tokens], value[tokens], grads[0][rows]))
            d_context = d_context.mul_(ctx.scale)
            d_value[tokens] = _join(torch.bmm((weights * keep).transpose(1, 2), d_context), count)
            d_weights = torch.bmm(d_context, v.transpose(1, 2)).mul_(keep).mul_(weights)
            # Gradient of the softmax.
            d_scores = d_weights.sub_(weights * d_weights.sum(2, keepdim=True)).mul_(ctx.heads.scaling)
            d_query[rows] = _join(torch.bmm(d_scores, k), count)
            d_key[tokens] = _join(torch.bmm(d_scores.transpose(1, 2), q), count)
        d_query[row:] = d_key[token:] = d_value[token:] = 0
        return d_query, d_key, d_value, None, None, None, None, None


def _split(flat: Tensor, count: int, heads: Heads) -> Tensor:
    """(count·L, H) → (count·h, L, d), a copy, in float32 at least."""
    precise = torch.promote_types(flat.dtype, torch.float32)
    by_head = flat.view(count, -1, heads.number, heads.dim).transpose(1, 2)
    return by_head.to(precise, copy=True, memory_format=torch.contiguous_format).view(count * heads.number, -1, heads.dim)


def _join(by_head: Tensor, count: int) -> Tensor:
    """(count·h, L, d) → (count·L, H), a view."""
    return by_head.view(count, -1, *by_head.shape[1:]).transpose(1, 2).flatten(0, 1).flatten(1)
