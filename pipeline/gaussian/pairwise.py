"""The KL divergence of diagonal Gaussians, and all-pairs similarities of two sets of them, with hand-written gradients.

Shapes: D dimensions, n_p × n_q pairs. The functions take four tensors, the means μ and log-variances ℓ of both sets;
λ = exp(−ℓ) is the precision. The entry point is `pipeline.gaussian.distribution.pairwise_similarity`.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false
# (torch leaves some of its functions untyped)

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Below this |d|, use the series. Its first omitted term is 2·d⁶/8! of the first kept one, 4e-14 here.
_SERIES_BELOW = 0.03
# Entries of the `kl` matrix whose error bound exceeds this are recomputed dimension by dimension.
TOLERANCE = 1e-5
# Number of entries of the n_p × n_q matrix in float64 at a time (32 MB).
_MATRIX_BLOCK = 1 << 22
# Entries recomputed in training on a GPU, for each row and each column of the matrix.
_OUTLIERS = 4
# Elements of a temporary with a dimension axis: on a CPU as many as fit in its cache, on a GPU enough to keep it busy.
_CPU_BLOCK, _GPU_BLOCK = 1 << 18, 1 << 24


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


def pairwise_kl(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
    """1 / (1 + KL(p_i‖q_j)), paper Eq. 3, (n_p, n_q).

    One matrix product, O(n_p·n_q) memory. It loses digits by cancellation if its terms are large compared with their sum.
    So it is computed in float64 (a thousandth of a training step), after shifting and scaling both sets equally, which changes
    no KL. If S is the sum of an entry's absolute terms, rounding changes its KL by at most (D + 8)·eps·S, and its similarity by
    that over (1 + KL)². Entries where this exceeds `TOLERANCE` are recomputed dimension by dimension.

    In training on a GPU, counting those entries would make the host wait. There, the 4·(n_p + n_q) entries with the largest
    bounds are recomputed, which covers every entry of several outliers on either side.
    """
    result: Tensor = _PairwiseKL.apply(p_mean, p_log_var, q_mean, q_log_var)  # type: ignore[assignment]
    return result


def pairwise_dimwise(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
    """mean_d 1 / (1 + KL_d(p_i‖q_j)), the released code's similarity, (n_p, n_q).

    It does not factor into matrix products. Forward and backward pass both compute it in pieces that fit in the cache, with
    n_p·n_q·D time and O(n·D + n_p·n_q) memory.
    """
    result: Tensor = _PairwiseDimwise.apply(p_mean, p_log_var, q_mean, q_log_var)  # type: ignore[assignment]
    return result


class _Factors(NamedTuple):
    """2·KL = square @ precision.T + cross @ pull.T + row + column, with both sets shifted and scaled equally; float64."""

    square: Tensor
    """(n_p, D) σ_p² + μ_p²"""
    cross: Tensor
    """(n_p, D) −2·μ_p"""
    precision: Tensor
    """(n_q, D) λ"""
    pull: Tensor
    """(n_q, D) μ_q·λ"""
    row: Tensor
    """(n_p, 1)"""
    column: Tensor
    """(n_q,)"""
    row_terms: Tensor
    """(n_p, 1); row_terms + column_terms + 10·KL bounds S, see `_factors`."""
    column_terms: Tensor
    """(n_q,)"""
    p_variance: Tensor
    q_mean: Tensor
    scale: Tensor
    """(D,) factor by which the means were multiplied."""


def _factors(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> _Factors:
    """With C = Σ μ_q²λ and L = Σ|ℓ_p| + Σ|ℓ_q|, the absolute terms of an entry are Σ σ_p²λ ≤ 2·KL_var + D + L; Σ μ_p²λ ≤
    2·Σ(μ_p−μ_q)²λ + 2·C; 2·Σ|μ_p·μ_q|λ ≤ Σ μ_p²λ + C; C; L and D. Their sum S is at most 10·KL + 2·D + 2·L + 6·C.
    """
    centre = (p_mean.mean(0, dtype=torch.float64) + q_mean.mean(0, dtype=torch.float64)) / 2
    log_scale = (p_log_var.mean(0, dtype=torch.float64) + q_log_var.mean(0, dtype=torch.float64)) / 2
    scale = torch.exp(-0.5 * log_scale)
    dim = p_mean.shape[1]
    p_mean, q_mean = (p_mean - centre).mul_(scale), (q_mean - centre).mul_(scale)
    p_log_var, q_log_var = p_log_var - log_scale, q_log_var - log_scale
    p_sum, q_sum = p_log_var.sum(1, keepdim=True), q_log_var.sum(1)
    p_size, q_size = (torch.linalg.vector_norm(t, 1, dim=1) for t in (p_log_var, q_log_var))
    p_variance, precision = p_log_var.exp_(), q_log_var.neg_().exp_()
    pull = q_mean * precision
    quadratic = torch.linalg.vecdot(q_mean, pull)
    return _Factors(
        square=torch.addcmul(p_variance, p_mean, p_mean),
        cross=p_mean.mul_(-2),
        precision=precision,
        pull=pull,
        row=-p_sum,
        column=quadratic + q_sum - dim,
        row_terms=2 * (p_size[:, None] + dim),
        column_terms=2 * q_size + 6 * quadratic,
        p_variance=p_variance,
        q_mean=q_mean,
        scale=scale,
    )


class _PairwiseKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
        f = _factors(p_mean, p_log_var, q_mean, q_log_var)
        similarity = _matrix(p_mean, q_mean)
        rounding = (p_mean.shape[1] + 8) * torch.finfo(torch.float64).eps
        most = _most(p_mean, q_mean, training=any(ctx.needs_input_grad))
        # 12·KL / (1 + KL)² is at most 3.
        watched = most is not None or bool(
            similarity.numel() and not rounding * (f.row_terms.max() + f.column_terms.max() + 3) <= TOLERANCE
        )
        doubtful: list[tuple[Tensor, Tensor]] = []
        for rows in _row_blocks(len(p_mean), len(q_mean)):
            kl = torch.addmm(f.column, f.square[rows], f.precision.T).addmm_(f.cross[rows], f.pull.T)
            kl.add_(f.row[rows]).mul_(0.5).clamp_min_(0)
            if watched:
                error = rounding * (f.row_terms[rows] + f.column_terms + 12 * kl)
                # Use the lowest possible KL.
                error, place = _largest((error / (1 + (kl - error).clamp_min_(0)).square_()).flatten(), most)
                doubtful.append((error, place + rows.start * len(q_mean)))
            similarity[rows] = kl.add_(1).reciprocal_()
        entries = _entries(doubtful, len(q_mean), most) if watched else f.row.new_empty((0, 2), dtype=torch.int64)
        for i, j in _entry_blocks(entries, p_mean):
            terms = kl_terms(p_mean[i].double(), p_log_var[i].double(), q_mean[j].double(), q_log_var[j].double())
            similarity[i, j] = (1 / (1 + terms.sum(1))).to(similarity.dtype)
        ctx.save_for_backward(p_mean, p_log_var, q_mean, q_log_var, similarity, entries)
        return similarity

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, ...]:
        p_mean, p_log_var, q_mean, q_log_var, similarity, entries = ctx.saved_tensors
        f = _factors(p_mean, p_log_var, q_mean, q_log_var)
        d_square, d_cross = torch.empty_like(f.square), torch.empty_like(f.cross)
        d_precision, d_pull = torch.zeros_like(f.precision), torch.zeros_like(f.pull)
        by_row, by_column = f.row.new_empty((len(f.square), 1)), f.row.new_zeros((len(f.pull), 1))
        recomputed: Tensor | None = None
        if len(entries):
            recomputed = torch.zeros_like(similarity, dtype=torch.bool)
            recomputed[entries[:, 0], entries[:, 1]] = True
        for rows in _row_blocks(len(p_mean), len(q_mean)):
            # Gradient of the loss with respect to 2·KL.
            weight = (-0.5 * grads[0][rows].double()).mul_(similarity[rows].double().square())
            if recomputed is not None:
                weight.masked_fill_(recomputed[rows], 0)
            torch.mm(weight, f.precision, out=d_square[rows])
            torch.mm(weight, f.pull, out=d_cross[rows])
            d_precision.addmm_(weight.T, f.square[rows])
            d_pull.addmm_(weight.T, f.cross[rows])
            by_row[rows] = weight.sum(1, keepdim=True)
            by_column += weight.sum(0)[:, None]
        # In place if a factor or a gradient is not needed again.
        d_p_log_var = f.p_variance.mul_(d_square).sub_(by_row)
        d_p_mean = d_square.mul_(f.cross).add_(d_cross, alpha=2).mul_(-f.scale)
        quadratic = f.q_mean * by_column
        d_q_log_var = d_precision.addcmul_(f.q_mean, d_pull.add_(quadratic)).mul_(f.precision).neg_().add_(by_column)
        d_q_mean = d_pull.add_(quadratic).mul_(f.precision).mul_(f.scale)
        for i, j in _entry_blocks(entries, p_mean):
            weight = (-grads[0][i, j].double() * similarity[i, j].double().square())[:, None]
            difference = p_mean[i].double() - q_mean[j].double()
            excess = torch.expm1(p_log_var[i].double() - q_log_var[j].double())
            pull = difference * torch.exp(-q_log_var[j].double())
            d_p_mean.index_add_(0, i, weight * pull)
            d_q_mean.index_add_(0, j, -weight * pull)
            d_p_log_var.index_add_(0, i, 0.5 * weight * excess)
            d_q_log_var.index_add_(0, j, -0.5 * weight * (excess + difference * pull))
        return tuple(d.to(p_mean.dtype) for d in (d_p_mean, d_p_log_var, d_q_mean, d_q_log_var))


def _most(p_mean: Tensor, q_mean: Tensor, *, training: bool) -> int | None:
    """Number of entries to recompute, those with the largest errors; None: all whose error exceeds `TOLERANCE`."""
    return _OUTLIERS * (len(p_mean) + len(q_mean)) if training and p_mean.device.type != "cpu" else None


def _largest(error: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """The errors of the entries to recompute, out of some rows of the matrix, and their places in these rows."""
    if most is None:
        # Negating `<=` also catches infinities and NaN.
        place = (~(error <= TOLERANCE)).nonzero()[:, 0]
        return error[place], place
    # NaN is not in order with numbers.
    error, place = error.nan_to_num(nan=float("inf")).topk(min(most, len(error)), sorted=False)
    return error, place


def _entries(doubtful: list[tuple[Tensor, Tensor]], n_q: int, most: int | None) -> Tensor:
    """(k, 2) row and column of each entry to recompute, from the errors and places of all parts of the matrix."""
    error, place = (torch.cat(parts) for parts in zip(*doubtful, strict=True))
    if most is not None and len(doubtful) > 1:
        place = place[error.topk(min(most, len(place)), sorted=False).indices]
    return torch.stack((place // n_q, place % n_q), 1)


class _PairwiseDimwise(torch.autograd.Function):
    """Computes one row p_i at a time against pieces of q. With d = ℓ_p − ℓ_q and m = μ_p − μ_q, 1 / (1 + KL_d) = 2 / u, where
    u = 1 + (exp(d) − d) + m²λ. The clamp keeps exp(d) − d at 1 or more despite rounding, so u is at least 2.
    """

    @staticmethod
    def forward(ctx: Any, p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
        ctx.save_for_backward(p_mean, p_log_var, q_mean, q_log_var)
        similarity = _matrix(p_mean, q_mean)
        p_mean, p_log_var, q_mean, q_log_var = (t.to(similarity.dtype) for t in (p_mean, p_log_var, q_mean, q_log_var))
        precision = torch.exp(-q_log_var)
        for columns in _column_blocks(q_mean):
            d, u = torch.empty_like(q_mean[columns]), torch.empty_like(q_mean[columns])
            for i in range(len(p_mean)):
                torch.sub(p_log_var[i], q_log_var[columns], out=d)
                torch.exp(d, out=u).sub_(d).clamp_min_(1)
                torch.sub(p_mean[i], q_mean[columns], out=d)
                u.addcmul_(d.square_(), precision[columns]).add_(1).reciprocal_()
                similarity[i, columns] = u.mean(1).mul_(2)
        return similarity

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, ...]:
        dtype = grads[0].dtype
        p_mean, p_log_var, q_mean, q_log_var = (t.to(dtype) for t in ctx.saved_tensors)
        precision = torch.exp(-q_log_var)
        d_p_mean, d_p_log_var, d_q_mean, d_q_log_var = (torch.zeros_like(t) for t in (p_mean, p_log_var, q_mean, q_log_var))
        # Limit d in exp(d) to avoid overflow: u⁻² is zero there, but zero times infinity would be NaN.
        ceiling = 0.9 * math.log(torch.finfo(dtype).max)
        for columns in _column_blocks(q_mean):
            excess, difference, u, pull = (torch.empty_like(q_mean[columns]) for _ in range(4))
            for i in range(len(p_mean)):
                torch.sub(p_log_var[i], q_log_var[columns], out=excess)
                torch.exp(torch.clamp_max(excess, ceiling, out=u), out=u)
                torch.sub(p_mean[i], q_mean[columns], out=difference)
                torch.mul(difference, precision[columns], out=pull)
                # From here on, `excess` becomes u of the class docstring, and `u` becomes exp(d) − 1.
                d = excess
                torch.sub(u, d, out=d)
                d.clamp_min_(1).addcmul_(difference, pull)
                torch.sub(u, 1, out=u)
                weight = d.add_(1).pow_(-2).mul_((-2 / q_mean.shape[1]) * grads[0][i, columns, None])
                through = u.mul_(weight)
                pull.mul_(weight).mul_(2)
                d_p_log_var[i] += through.sum(0)
                d_p_mean[i] += pull.sum(0)
                d_q_mean[columns] -= pull
                d_q_log_var[columns] -= through.addcmul_(pull, difference, value=0.5)
        return tuple(
            d.to(t.dtype) for d, t in zip((d_p_mean, d_p_log_var, d_q_mean, d_q_log_var), ctx.saved_tensors, strict=True)
        )


def _matrix(p_mean: Tensor, q_mean: Tensor) -> Tensor:
    """An empty (n_p, n_q) matrix in the inputs' precision, but at least float32."""
    dtype = torch.promote_types(torch.promote_types(p_mean.dtype, q_mean.dtype), torch.float32)
    return torch.empty((len(p_mean), len(q_mean)), dtype=dtype, device=p_mean.device)


def _row_blocks(n_p: int, n_q: int) -> Iterator[slice]:
    size = max(1, _MATRIX_BLOCK // max(1, n_q))
    return (slice(start, min(start + size, n_p)) for start in range(0, n_p, size))


def _block_elements(like: Tensor) -> int:
    return _CPU_BLOCK if like.device.type == "cpu" else _GPU_BLOCK


def _column_blocks(q_mean: Tensor) -> Iterator[slice]:
    size = max(1, _block_elements(q_mean) // q_mean.shape[1])
    return (slice(start, start + size) for start in range(0, len(q_mean), size))


def _entry_blocks(entries: Tensor, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = max(1, _block_elements(like) // like.shape[1])
    return ((block[:, 0], block[:, 1]) for block in entries.split(size) if len(block))
