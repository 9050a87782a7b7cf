"""Vectors for entailment search, whose inner products are KLs up to a constant, and bounds on the KLs from rounded products.

The score of "premise p entails hypothesis h" is sim(h‖p) = 1 / (1 + KL(h‖p)). So the x that entail a query q have the smallest
KL(q‖x), and the x that q entails have the smallest KL(x‖q). Up to a constant that depends on q, −2·KL is an inner product of a
vector of q and a vector of x:

    −2·KL(q‖x) = Σ [ −(σ²_q + μ²_q)·e^(−ℓ_x) + 2·μ_q·μ_x·e^(−ℓ_x) ] + 1·(−Σ [ μ²_x·e^(−ℓ_x) + ℓ_x ]) + Σ [ 1 + ℓ_q ]
    −2·KL(x‖q) = Σ [ −e^(−ℓ_q)·(σ²_x + μ²_x) + 2·μ_q·e^(−ℓ_q)·μ_x ] + 1·Σ ℓ_x + Σ [ 1 − μ²_q·e^(−ℓ_q) − ℓ_q ]

with sums over d = 1 … D, so each vector has 2·D + 1 numbers. KL does not change if all Gaussians are shifted and scaled in the
same way. So all Gaussians are first standardised by the corpus's centre and spread: then little cancels. `Frame.row_vectors` and
`Frame.query_vectors` are these vectors, for any store that searches by inner product.

Shapes: N vectors of the corpus, n queries, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pipeline.gaussian.distribution import Gaussian

Way = Literal["entails", "entailed"]
"""Role of the corpus: sentences that entail the query (premises), or that the query entails (hypotheses)."""
WAYS: tuple[Way, ...] = ("entails", "entailed")


# Gaussians that are converted to float64 at a time.
_PIECE = 2048


class Bounds(NamedTuple):
    """Bounds on 2·KL between n queries and rows of the corpus, computed from their products.

    Let s be the exact inner product of a query and a row, so that 2·KL = −s − c, and S the sum of its terms' absolute values. The
    numbers of both vectors are rounded, and 2·D + 1 products are added in float32 in some order. So the computed product is
    within γ·S + η of s (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), where η covers underflow.

    S is bounded without computing it. 2·KL = V + M with V = Σ exp(d) − 1 − d, d the difference of the two ℓ, and
    M = Σ (μ_q − μ_x)²·λ, λ = e^(−ℓ) of the premise. Let C be Σ μ²·λ of the premise, and L_q and L_x the sums of |ℓ|. With σ² and
    μ² of the hypothesis,
        Σ σ²·λ = V + D + Σ d ≤ V + D + L_q + L_x
        Σ μ²·λ ≤ 2·M + 2·C
        Σ |2·μ_q·μ_x|·λ ≤ Σ μ²·λ + C ≤ 2·M + 3·C
        |the last number| ≤ C + L_x if x is the premise, ≤ L_x if q is
    so S ≤ 4·(2·KL) + A + B, where A = D + L_q of the query and B = 2·L_x of the row, plus a term for the premise: 6·C in B
    if x is the premise, 5·C in A if q is.

    The corpus's vectors give s + β·B with β = γ / (1 − γ) instead of s, so the computed product U has an extra error of γ·β·B:
        s ≤ U − β·B + γ·(S + β·B) + η = U + γ·(S − B) + η,   so   2·KL ≥ −(U + c + γ·A + η) / (1 + 4·γ)              (low)
        s ≥ U − β·B − γ·(S + β·B) − η,                       so   2·KL ≤ −(U + c − γ·A − η − 2·β·B) / (1 − 4·γ)     (high)
    The lower bound depends on the row only through U: rows with smaller products have higher lower bounds.
    """

    vectors: Tensor
    """(n, 2·D + 1) of the queries, float32"""
    constant: Tensor
    """(n, 1) c, float64"""
    error: Tensor
    """(n, 1) γ·A + η, float64; infinite if a product could overflow: then the bounds say nothing"""
    gamma: float

    def __getitem__(self, queries: Tensor) -> Bounds:  # type: ignore[override]
        """The bounds for some of the queries."""
        return Bounds(self.vectors[queries], self.constant[queries], self.error[queries], self.gamma)

    def low(self, products: Tensor) -> Tensor:
        """Lower bound of 2·KL, (n, m), from the products U, (n, m)."""
        return -(products.double() + self.constant + self.error) / (1 + 4 * self.gamma)

    def high(self, products: Tensor, row_terms: Tensor) -> Tensor:
        """Upper bound of 2·KL, (n, m), from the products U, (n, m), and β·B of the rows."""
        return -(products.double() + self.constant - self.error - 2 * row_terms) / (1 - 4 * self.gamma)


@dataclass(frozen=True, slots=True)
class Frame:
    """The shift and scale that standardise all Gaussians.

    Attributes:
        shift: (D,) float64, subtracted from the means.
        scale: (D,) float64, divisor of the means and standard deviations.
    """

    shift: Tensor
    scale: Tensor

    @staticmethod
    def of(corpus: Gaussian) -> Frame:
        """The frame of a corpus of (N, D): its centre, and the typical deviation of each dimension."""
        shift = corpus.mean.mean(0, dtype=torch.float64)
        # The Gaussians' own variance together with the spread of the means.
        pieces = [corpus[start : start + _PIECE] for start in range(0, len(corpus), _PIECE)]
        spread = torch.stack([(piece.log_var.double().exp() + (piece.mean - shift).square()).sum(0) for piece in pieces])
        return Frame(shift, (spread.sum(0) / len(corpus)).sqrt().clamp_min(1e-12))

    @property
    def gamma(self) -> float:
        """γ of `Bounds`."""
        # Numbers of both vectors are rounded to float32; 2·D + 1 products are added. Earlier rounding in float64 (D + |ℓ| times
        # its epsilon) is at most 1e-11.
        roundings = (2 * len(self.shift) + 5) * torch.finfo(torch.float32).eps / 2
        return 1 / (1 - roundings) - 1 + 1e-11

    def row_vectors(self, batch: Gaussian, way: Way) -> Tensor:
        """Vectors of rows of a corpus, (N, 2·D + 1), float64, for the inner product with `query_vectors`."""
        mean, log_var = self._standard(batch)
        if way == "entails":
            precision = (-log_var).exp()
            parts, last = (precision, mean * precision), -(mean.square() * precision + log_var).sum(-1)
        else:
            parts, last = (log_var.exp() + mean.square(), mean), log_var.sum(-1)
        # The last number is a sum over D dimensions. It is divided by D here and multiplied by D in the queries.
        return torch.cat((*parts, (last / mean.shape[1])[:, None]), dim=-1)

    def query_vectors(self, batch: Gaussian, way: Way) -> tuple[Tensor, Tensor]:
        """Vectors of queries, (n, 2·D + 1), and a constant c for each, (n, 1); float64.

        For way "entails", the inner product with a row x is −2·KL(q‖x) − c; for "entailed" it is −2·KL(x‖q) − c. So the rows with
        the largest products have the largest similarity, 1 / (1 + KL).
        """
        mean, log_var = self._standard(batch)
        dim = mean.shape[1]
        if way == "entails":
            parts = (-(log_var.exp() + mean.square()), 2 * mean)
            constant = dim + log_var.sum(-1, keepdim=True)
        else:
            precision = (-log_var).exp()
            parts = (-precision, 2 * mean * precision)
            constant = dim - (mean.square() * precision + log_var).sum(-1, keepdim=True)
        return torch.cat((*parts, torch.full_like(constant, dim)), dim=-1), constant

    def rows(self, batch: Gaussian, way: Way) -> tuple[Tensor, Tensor]:
        """`row_vectors` with β·B added to the product, as `Bounds` needs them, and the β·B of each, (N,); float64."""
        mean, log_var = self._standard(batch)
        terms = 2 * log_var.abs().sum(-1)
        if way == "entails":
            terms += 6 * (mean.square() * (-log_var).exp()).sum(-1)
        terms *= self.gamma / (1 - self.gamma)
        vectors = self.row_vectors(batch, way)
        vectors[:, -1] += terms / mean.shape[1]
        return vectors, terms

    def queries(self, batch: Gaussian, way: Way, largest: float) -> Bounds:
        """`query_vectors` in float32, and bounds for their products with `rows`, whose largest absolute number is `largest`."""
        mean, log_var = self._standard(batch)
        terms = mean.shape[1] + log_var.abs().sum(-1, keepdim=True)
        if way == "entailed":
            terms += 5 * (mean.square() * (-log_var).exp()).sum(-1, keepdim=True)
        vectors, constant = self.query_vectors(batch, way)
        size, single = vectors.abs().sum(-1, keepdim=True), torch.finfo(torch.float32)
        # float32 may treat numbers below its smallest normal number as 0.
        error = self.gamma * terms + single.tiny * (size + vectors.shape[1] * (largest + 1))
        error[~(size * max(1.0, largest) < single.max / 2)] = torch.inf
        return Bounds(vectors.float(), constant, error, self.gamma)

    def _standard(self, batch: Gaussian) -> tuple[Tensor, Tensor]:
        return (batch.mean.double() - self.shift) / self.scale, batch.log_var.double() - 2 * self.scale.log()
