"""Diagonal Gaussians, their KL divergence and the similarities made of it.

Shapes: D dimensions, n items, n_p × n_q pairs. Equations are those of "Sentence Representations via Gaussian Embedding".
Two definitions of the similarity are in circulation and they are not the same:
`kl`          1 / (1 + Σ_d KL_d)          the paper's Eq. 3
`kl-dimwise`  mean_d 1 / (1 + KL_d)       what the paper's released code computes
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

SimilarityKind = Literal["kl", "kl-dimwise"]

# An entry of the pairwise `kl` matrix whose error bound exceeds this is computed again by the paired form.
PAIRWISE_TOLERANCE = 1e-5
# Elements of the largest temporary of the streamed forms (64 MB in float32).
_BLOCK_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A batch of diagonal Gaussians.

    Attributes:
        mean: (..., D).
        log_var: (..., D), natural logarithm of the variance.

    Raises:
        ValueError: the two shapes differ.
    """

    mean: Tensor
    log_var: Tensor

    def __post_init__(self) -> None:
        if self.mean.shape != self.log_var.shape:
            raise ValueError(f"mean {tuple(self.mean.shape)} and log_var {tuple(self.log_var.shape)} differ in shape")

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Gaussian:
        return Gaussian(self.mean[index], self.log_var[index])

    def to(self, *args: Any, **kwargs: Any) -> Gaussian:
        """`torch.Tensor.to` of both tensors."""
        return Gaussian(self.mean.to(*args, **kwargs), self.log_var.to(*args, **kwargs))

    @property
    def variance(self) -> Tensor:
        """(..., D), σ² = exp(log_var)."""
        return self.log_var.exp()

    @staticmethod
    def cat(parts: Sequence[Gaussian]) -> Gaussian:
        """Concatenation along the first dimension."""
        return Gaussian(torch.cat([p.mean for p in parts]), torch.cat([p.log_var for p in parts]))


def _kl_terms(p: Gaussian, q: Gaussian) -> Tensor:
    """KL of each dimension, (..., D), broadcasting; never negative."""
    d = p.log_var - q.log_var
    # expm1(d) − d keeps the digits that exp(d) − 1 − d loses for nearly equal variances; rounding may still leave −1 ulp.
    return (0.5 * (torch.expm1(d) - d + ((p.mean - q.mean) * torch.exp(-0.5 * q.log_var)).square())).clamp_min(0)


def kl_divergence(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p‖q) of same-shaped batches (paper Eq. 2).

    Returns:
        (...,), nats, ≥ 0; exactly 0 for identical Gaussians.
    """
    return _kl_terms(p, q).sum(-1)


def similarity(p: Gaussian, q: Gaussian, kind: SimilarityKind = "kl") -> Tensor:
    """sim(p‖q) of same-shaped batches (paper Eq. 3, or the released code's form, see the module).

    Returns:
        (...,), in (0, 1], exactly 1 for identical Gaussians.

    Raises:
        ValueError: unknown kind.
    """
    _check_kind(kind)
    terms = _kl_terms(p, q)
    if kind == "kl":
        return 1 / (1 + terms.sum(-1))
    return (1 / (1 + terms)).mean(-1)


def pairwise_similarity(p: Gaussian, q: Gaussian, kind: SimilarityKind = "kl") -> Tensor:
    """sim(p_i‖q_j) for all pairs.

    `kl` is two matrix products, O(n_p·n_q) memory. `kl-dimwise` does not factor: it is streamed over blocks of rows that
    are computed again in the backward pass, O(n·D + n_p·n_q) memory.

    The products cancel where the terms are large against their sum. With S the sum of the absolute terms, the error of an
    entry is below ½·√(2D)·eps·S·sim² (rounding errors taken as independent); entries where that exceeds
    `PAIRWISE_TOLERANCE` are computed again by the paired form.

    Args:
        p: (n_p, D).
        q: (n_q, D).

    Returns:
        (n_p, n_q), in (0, 1].

    Raises:
        ValueError: unknown kind.
    """
    _check_kind(kind)
    return _pairwise_kl_similarity(p, q) if kind == "kl" else _pairwise_dimwise(p, q)


def _check_kind(kind: str) -> None:
    if kind not in ("kl", "kl-dimwise"):
        raise ValueError(f"unknown similarity {kind!r}: use 'kl' or 'kl-dimwise'")


def _standardised(p: Gaussian, q: Gaussian) -> tuple[Gaussian, Gaussian]:
    """Shift and scale every dimension alike in both: KL does not change, the terms that cancel become small."""
    with torch.no_grad():
        centre = (p.mean.mean(0) + q.mean.mean(0)) / 2
        log_scale = (p.log_var.mean(0) + q.log_var.mean(0)) / 2
        scale = torch.exp(-0.5 * log_scale)
    return tuple(Gaussian((g.mean - centre) * scale, g.log_var - log_scale) for g in (p, q))  # type: ignore[return-value]


def _pairwise_kl_similarity(p: Gaussian, q: Gaussian) -> Tensor:
    p_std, q_std = _standardised(p, q)
    dim = p.mean.shape[-1]
    precision = torch.exp(-q_std.log_var)
    spread = (p_std.log_var.exp() + p_std.mean.square()) @ precision.T
    cross = p_std.mean @ (q_std.mean * precision).T
    centre = (q_std.mean.square() * precision).sum(-1)
    twice_kl = spread - 2 * cross + (centre + q_std.log_var.sum(-1) - dim) - p_std.log_var.sum(-1, keepdim=True)
    kl = 0.5 * twice_kl.clamp_min(0)
    with torch.no_grad():
        # 2·|cross| ≤ spread + centre, so the absolute terms need no third product.
        total = 2 * (spread + centre) + q_std.log_var.abs().sum(-1) + p_std.log_var.abs().sum(-1, keepdim=True) + dim
        error = 0.5 * (2 * dim) ** 0.5 * torch.finfo(kl.dtype).eps * total
        # In sim, with the KL at its lowest possible value; "not below" also catches infinities and NaN.
        inaccurate = ~(error / (1 + (kl - error).clamp_min(0)).square() <= PAIRWISE_TOLERANCE)
        rows, columns = inaccurate.nonzero(as_tuple=True)
    if len(rows):
        kl = kl.index_put((rows, columns), _paired_kl_at(p, q, rows, columns))
    return 1 / (1 + kl)


def _paired_kl_at(p: Gaussian, q: Gaussian, rows: Tensor, columns: Tensor) -> Tensor:
    """KL(p_i‖q_j) of the listed pairs, (k,), a block at a time and again in the backward pass."""

    def block(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return kl_divergence(Gaussian(p_mean[i], p_log_var[i]), Gaussian(q_mean[j], q_log_var[j]))

    size = max(1, _BLOCK_ELEMENTS // p.mean.shape[-1])
    return _streamed(block, p, q, list(zip(rows.split(size), columns.split(size), strict=True)))


def _pairwise_dimwise(p: Gaussian, q: Gaussian) -> Tensor:
    def block(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor, i: Tensor) -> Tensor:
        rows = Gaussian(p_mean[i][:, None], p_log_var[i][:, None])
        return (1 / (1 + _kl_terms(rows, Gaussian(q_mean[None], q_log_var[None])))).mean(-1)

    size = max(1, _BLOCK_ELEMENTS // max(1, q.mean.numel()))
    rows = torch.arange(len(p), device=p.mean.device).split(size)
    return _streamed(block, p, q, [(r,) for r in rows])


def _streamed(block: Any, p: Gaussian, q: Gaussian, parts: list[tuple[Tensor, ...]]) -> Tensor:
    """`block(p.mean, p.log_var, q.mean, q.log_var, *part)` of each part, concatenated; recomputed in the backward pass."""
    inputs = (p.mean, p.log_var, q.mean, q.log_var)
    if len(parts) == 1:
        return block(*inputs, *parts[0])
    outputs: list[Tensor] = [
        checkpoint(block, *inputs, *part, use_reentrant=False, preserve_rng_state=False)  # type: ignore[misc]
        for part in parts
    ]
    return torch.cat(outputs)
