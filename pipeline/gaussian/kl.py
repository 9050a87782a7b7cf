"""The KL divergence of diagonal Gaussians, one term per dimension, accurate even if the two are nearly equal."""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false
# (torch leaves some of its functions untyped)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Below this |d|, use the series. Its first omitted term is 2·d⁶/8! of the first kept one, 4e-14 here.
_SERIES_BELOW = 0.03


def kl_terms(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
    """KL(p‖q) per dimension, (..., D), with broadcasting (paper Eq. 2).

    It is a sum of two nonnegative terms, each accurate to a few units in the last place.
    """
    variances: Tensor = _ExpBeyondLine.apply(p_log_var - q_log_var)  # type: ignore[assignment]
    return 0.5 * (variances + ((p_mean - q_mean) * torch.exp(-0.5 * q_log_var)).square())


class _ExpBeyondLine(torch.autograd.Function):
    """exp(d) − 1 − d.

    Evaluated in this form, it loses all digits for small d; expm1(d) − d still loses half of them.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor) -> Tensor:
        ctx.save_for_backward(d)
        series = d.square() / 2 * (1 + d / 3 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6 * (1 + d / 7)))))
        return torch.where(d.abs() < _SERIES_BELOW, series, torch.expm1(d) - d)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (d,) = ctx.saved_tensors
        return grads[0] * torch.expm1(d)
