"""Attention with dropout, its gradient written out by hand, against plain operations with the same draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.models.dropout import keep_mask
from pipeline.models.packed_attention import Heads, attend

HEADS = Heads(number=3, dim=4, scaling=0.5)
SHAPES = ((2, 3), (1, 5), (4, 6))
SPARE = 7


def leaf(rows: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, HEADS.number * HEADS.dim, generator=g, dtype=torch.float64, requires_grad=True)


def masks(padded: bool) -> list[Tensor | None]:
    if not padded:
        return [None] * len(SHAPES)
    lengths = [torch.tensor([2, 3]), torch.tensor([5]), torch.tensor([1, 4, 6, 6])]
    return [torch.arange(length) < own[:, None] for (_, length), own in zip(SHAPES, lengths, strict=True)]


def plain(query: Tensor, key: Tensor, value: Tensor, first_only: bool, hidden: list[Tensor | None], p: float) -> Tensor:
    out: list[Tensor] = []
    row = token = 0
    for (count, length), mask in zip(SHAPES, hidden, strict=True):
        n = 1 if first_only else length
        q = query[row : row + count * n].view(count, n, HEADS.number, HEADS.dim).transpose(1, 2)
        k, v = (
            t[token : token + count * length].view(count, length, HEADS.number, HEADS.dim).transpose(1, 2) for t in (key, value)
        )
        row, token = row + count * n, token + count * length
        scores = HEADS.scaling * q @ k.transpose(2, 3)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
        weights = scores.softmax(-1)
        if p:
            kept, scale = keep_mask(weights.flatten(0, 1), p)
            weights = weights * kept.view(weights.shape) * scale
        out.append((weights @ v).transpose(1, 2).reshape(count * n, -1))
    return torch.cat([*out, torch.zeros(len(query) - row, query.shape[1], dtype=query.dtype)])


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("first_only", [False, True])
def test_value_and_gradient(p: float, padded: bool, first_only: bool) -> None:
    tokens = sum(count * length for count, length in SHAPES) + SPARE
    rows = sum(count for count, _ in SHAPES) if first_only else tokens
    inputs = leaf(rows, 1), leaf(tokens, 2), leaf(tokens, 3)
    weight = torch.randn(rows, HEADS.number * HEADS.dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.manual_seed(5)
    ours = attend(*inputs, shapes=SHAPES, masks=masks(padded), heads=HEADS, p=p)
    torch.manual_seed(5)
    expected = plain(*inputs, first_only=first_only, hidden=masks(padded), p=p)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad((ours * weight).sum(), inputs), torch.autograd.grad((expected * weight).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_under_autocast_it_keeps_to_float32_inside() -> None:
    tokens = sum(count * length for count, length in SHAPES)
    query, key, value = (leaf(tokens, seed).detach() for seed in (1, 2, 3))
    exact = attend(query, key, value, SHAPES, masks(True), HEADS, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(5)
        halves = (t.bfloat16() for t in (query, key, value))
        inside = attend(*halves, shapes=SHAPES, masks=masks(True), heads=HEADS, p=1e-5)
    assert inside.dtype == torch.bfloat16
    # What rounding the inputs and the result leaves; a dropped weight would be far more, at that p there is none.
    assert (inside.double() - exact).abs().max() < 0.05
