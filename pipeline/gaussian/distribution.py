"""Diagonal Gaussians, their KL divergence, and similarities based on it.

Shapes: D dimensions, n items, n_p × n_q pairs. Equations are from "Sentence Representations via Gaussian Embedding".
There are two different definitions of the similarity:
`kl`          1 / (1 + Σ_d KL_d)          the paper's Eq. 3
`kl-dimwise`  mean_d 1 / (1 + KL_d)       the paper's released code
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.gaussian.pairwise import kl_terms, pairwise_dimwise, pairwise_kl
from pipeline.gaussian.tokens import TokenVectors

SimilarityKind = Literal["kl", "kl-dimwise"]


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A batch of diagonal Gaussians.

    Attributes:
        mean: (..., D).
        log_var: (..., D), natural logarithm of the variance.
        tokens: the token vectors of the sentences, if the model has a relation head. No equation uses them.

    Raises:
        ValueError: the two shapes differ.
    """

    mean: Tensor
    log_var: Tensor
    tokens: TokenVectors | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.mean.shape != self.log_var.shape:
            raise ValueError(f"mean {tuple(self.mean.shape)} and log_var {tuple(self.log_var.shape)} differ in shape")

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Gaussian:
        tokens = None if self.tokens is None else self.tokens[index]
        return Gaussian(self.mean[index], self.log_var[index], tokens=tokens)

    def to(self, *args: Any, **kwargs: Any) -> Gaussian:
        """`torch.Tensor.to` of both tensors; token vectors keep their type."""
        mean = self.mean.to(*args, **kwargs)
        tokens = None if self.tokens is None else self.tokens.to(mean.device)
        return Gaussian(mean, self.log_var.to(*args, **kwargs), tokens=tokens)

    def numpy(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """mean and log_var as arrays, (n, D) each."""
        return self.mean.cpu().numpy(), self.log_var.cpu().numpy()

    @property
    def variance(self) -> Tensor:
        """(..., D), σ² = exp(log_var)."""
        return self.log_var.exp()

    def stacked(self) -> Tensor:
        """One tensor, (n, 2, D): mean and log-variance."""
        return torch.stack((self.mean, self.log_var), 1)

    @staticmethod
    def cat(parts: Sequence[Gaussian]) -> Gaussian:
        """Concatenation along the first dimension; without token vectors if a part has none."""
        tokens = [p.tokens for p in parts if p.tokens is not None]
        mean, log_var = torch.cat([p.mean for p in parts]), torch.cat([p.log_var for p in parts])
        return Gaussian(mean, log_var, tokens=TokenVectors.cat(tokens) if len(tokens) == len(parts) else None)


def _kl_terms(p: Gaussian, q: Gaussian) -> Tensor:
    return kl_terms(p.mean, p.log_var, q.mean, q.log_var)


def kl_divergence(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p‖q) of batches with the same shape (paper Eq. 2).

    Returns:
        (...,), nats, ≥ 0; exactly 0 for identical Gaussians.
    """
    return _kl_terms(p, q).sum(-1)


def similarity(p: Gaussian, q: Gaussian, kind: SimilarityKind = "kl") -> Tensor:
    """sim(p‖q) of batches with the same shape (paper Eq. 3, or the released code's form; see the module docstring).

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
    """sim(p_i‖q_j) for all pairs, without n_p·n_q·D memory (see `pipeline.gaussian.pairwise`).

    Args:
        p: (n_p, D).
        q: (n_q, D).

    Returns:
        (n_p, n_q), in (0, 1], in the inputs' precision but at least float32. `kl` is within 1e-5 of the exact value; unless the
        inputs are extreme, its error is below float32 resolution. Differentiable once.

    Raises:
        ValueError: unknown kind.
    """
    _check_kind(kind)
    pairwise = pairwise_kl if kind == "kl" else pairwise_dimwise
    return pairwise(p.mean, p.log_var, q.mean, q.log_var)


def _check_kind(kind: str) -> None:
    if kind not in ("kl", "kl-dimwise"):
        raise ValueError(f"unknown similarity {kind!r}: use 'kl' or 'kl-dimwise'")
