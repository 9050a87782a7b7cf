"""The vectors of an entailment search, whose inner products are KLs up to a constant, and bounds on those from rounded products.

A premise p entails a hypothesis h by sim(h‖p) = 1 / (1 + KL(h‖p)), so what entails a query q are the x with the smallest KL(q‖x),
and what q entails those with the smallest KL(x‖q). Up to a constant of q, −2·KL is an inner product of vectors of q and x:

    −2·KL(q‖x) = Σ [ −(σ²_q + μ²_q)·e^(−ℓ_x) + 2·μ_q·μ_x·e^(−ℓ_x) ] + 1·(−Σ [ μ²_x·e^(−ℓ_x) + ℓ_x ]) + Σ [ 1 + ℓ_q ]
    −2·KL(x‖q) = Σ [ −e^(−ℓ_q)·(σ²_x + μ²_x) + 2·μ_q·e^(−ℓ_q)·μ_x ] + 1·Σ ℓ_x + Σ [ 1 − μ²_q·e^(−ℓ_q) − ℓ_q ]

over d = 1 … D, so 2·D + 1 numbers each. KL does not change when all means are shifted and dimensions scaled in the same way. So
the corpus's own centre and spread are taken out first: then little is left to cancel, and float16 seldom overflows.

Shapes: N vectors of the corpus, n queries, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pipeline.gaussian import Gaussian

Way = Literal["entails", "entailed"]
"""What the corpus is to a query: sentences that entail it (premises), or that it entails (hypotheses)."""
WAYS: tuple[Way, ...] = ("entails", "entailed")


class Bounds(NamedTuple):
    """Bounds on the 2·KL between n queries and rows of the corpus, from their products.

    Let s be the exact inner product of a query and a row, so that 2·KL = −s − c, and S the sum of its absolute terms. The numbers
    of both vectors are rounded, then 2·D + 1 products are added in float32 in some order; so the computed product is within
    γ·S + η of s (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), where η covers underflow.

    S is bounded without adding it up. 2·KL = V + M with V = Σ exp(d) − 1 − d, d the difference of the two ℓ, and
    M = Σ (μ_q − μ_x)²·λ, λ = e^(−ℓ) of the premise. Let C be Σ μ²·λ of the premise, and L_q and L_x the sums of |ℓ|. With σ² and
    μ² of the hypothesis,
        Σ σ²·λ = V + D + Σ d ≤ V + D + L_q + L_x
        Σ μ²·λ ≤ 2·M + 2·C
        Σ |2·μ_q·μ_x|·λ ≤ Σ μ²·λ + C ≤ 2·M + 3·C
        |the last number| ≤ C + L_x where x is the premise, L_x where q is
    so S ≤ 4·(2·KL) + A + B, where A = D + L_q of the query and B = 2·L_x of the row, with C added for the premise: 6·C
    to B where x is the premise, 5·C to A where q is.

    The corpus's vectors hold s + β·B, β = γ / (1 − γ), so that their product U has an extra error of γ·β·B:
        s ≤ U − β·B + γ·(S + β·B) + η = U + γ·(S − B) + η,   so   2·KL ≥ −(U + c + γ·A + η) / (1 + 4·γ)              (low)
        s ≥ U − β·B − γ·(S + β·B) − η,                       so   2·KL ≤ −(U + c − γ·A − η − 2·β·B) / (1 − 4·γ)     (high)
    The low depends on the row through U alone: rows with smaller products have higher lows.
    """

    vectors: Tensor
    """(n, 2·D + 1) of the queries, float32"""
    constant: Tensor
    """(n, 1) c, float64"""
    error: Tensor
    """(n, 1) γ·A + η, float64; infinite where a product could overflow: then low and high say nothing"""
    gamma: float

    def __getitem__(self, queries: Tensor) -> Bounds:  # type: ignore[override]
        """The bounds of some of the queries."""
        return Bounds(self.vectors[queries], self.constant[queries], self.error[queries], self.gamma)

    def low(self, products: Tensor) -> Tensor:
        """The lower bound of 2·KL, (n, m), from U."""
        return -(products.double() + self.constant + self.error) / (1 + 4 * self.gamma)

    def high(self, products: Tensor, row_terms: Tensor) -> Tensor:
        """The upper bound of 2·KL, (n, m), from U and β·B."""
        return -(products.double() + self.constant - self.error - 2 * row_terms) / (1 - 4 * self.gamma)


@dataclass(frozen=True, slots=True)
class Frame:
    """The shift and scale that are taken out of all Gaussians before they become vectors, and the type of the corpus's vectors.

    Attributes:
        shift: (D,) float64, subtracted from means.
        scale: (D,) float64, what means and deviations are divided by.
        dtype: float32 or float16.
    """

    shift: Tensor
    scale: Tensor
    dtype: torch.dtype

    @property
    def gamma(self) -> float:
        """γ of `Bounds`."""
        # A query's number is rounded to float32, a row's to float32 and then to `dtype`; 2·D + 1 products are added. Earlier
        # rounding in float64 (D + |ℓ| times its epsilon) is at most 1e-11.
        roundings = (2 * len(self.shift) + 4) * torch.finfo(torch.float32).eps / 2
        return (1 + torch.finfo(self.dtype).eps / 2) / (1 - roundings) - 1 + 1e-11

    def rows(self, batch: Gaussian, way: Way) -> tuple[Tensor, Tensor]:
        """Vectors of rows of the corpus, (N, 2·D + 1), and the β·B in each, (N,); float64."""
        mean, log_var = self._standard(batch)
        size = log_var.abs().sum(-1)
        if way == "entails":
            precision = (-log_var).exp()
            quadratic = (mean.square() * precision).sum(-1)
            parts, last, terms = (precision, mean * precision), -quadratic - log_var.sum(-1), 6 * quadratic + 2 * size
        else:
            parts, last, terms = (log_var.exp() + mean.square(), mean), log_var.sum(-1), 2 * size
        terms *= self.gamma / (1 - self.gamma)
        # The last number is a sum over D: divided by D here, multiplied in the queries.
        return torch.cat((*parts, ((last + terms) / mean.shape[1])[:, None]), dim=-1), terms

    def queries(self, batch: Gaussian, way: Way, largest: float) -> Bounds:
        """Vectors of queries, and bounds for their products with rows of numbers up to `largest`."""
        mean, log_var = self._standard(batch)
        dim = mean.shape[1]
        terms = dim + log_var.abs().sum(-1, keepdim=True)
        if way == "entails":
            parts = (-(log_var.exp() + mean.square()), 2 * mean)
            constant = dim + log_var.sum(-1, keepdim=True)
        else:
            precision = (-log_var).exp()
            parts = (-precision, 2 * mean * precision)
            quadratic = (mean.square() * precision).sum(-1, keepdim=True)
            terms += 5 * quadratic
            constant = dim - quadratic - log_var.sum(-1, keepdim=True)
        vectors = torch.cat((*parts, torch.full_like(constant, dim)), dim=-1)
        size, single, kept = vectors.abs().sum(-1, keepdim=True), torch.finfo(torch.float32), torch.finfo(self.dtype)
        # float32 may treat numbers below its smallest normal one as 0; float16 rounds such numbers by half a step.
        lost = single.tiny + (kept.tiny * kept.eps / 2 if self.dtype == torch.float16 else 0)
        error = self.gamma * terms + size * lost + single.tiny * vectors.shape[1] * (largest + 1)
        error[~(size * max(1.0, largest) < single.max / 2)] = torch.inf
        return Bounds(vectors.float(), constant, error, self.gamma)

    def _standard(self, batch: Gaussian) -> tuple[Tensor, Tensor]:
        return (batch.mean.double() - self.shift) / self.scale, batch.log_var.double() - 2 * self.scale.log()
