"""Dropout; on a CPU its random numbers cost a seventh of the usual time."""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch leaves some of its functions untyped)

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_CASES = 1 << 16
_LOWEST_64, _LOWEST_16 = -(1 << 63), -(1 << 15)


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 − p).

    On a CPU, torch's dropout draws one random number per element, which takes a seventh of a training step. Here four elements
    share one 64-bit draw of torch's default generator, 16 bits each. So p is rounded to a multiple of 1/65,536, and the scale
    uses the rounded p.
    """
    if p == 0 or x.device.type != "cpu":
        return F.dropout(x, p)
    kept, scale = keep_mask(x, p)
    return (x * kept).mul_(scale)


def dropout_add(x: Tensor, residual: Tensor, p: float) -> Tensor:
    """residual + dropout(x, p), in the precision of the residual."""
    if p == 0 or x.device.type != "cpu":
        return residual + F.dropout(x, p)
    kept, scale = keep_mask(x, p)
    return torch.add(residual, x * kept, alpha=scale)


def keep_mask(x: Tensor, p: float) -> tuple[Tensor, float]:
    """Dropout of a CPU tensor as a mask (true: keep), in the shape of x, and the scale 1 / (1 − p)."""
    cases = min(round(p * _CASES), _CASES - 1)
    bits = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(_LOWEST_64, None)
    return bits.view(torch.int16)[: x.numel()].view(x.shape) >= _LOWEST_16 + cases, _CASES / (_CASES - cases)
