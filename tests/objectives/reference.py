"""Eq. 4 as it is written, to compare the losses with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.gaussian.distribution import Gaussian, similarity


def draw(n: int, dim: int, seed: int) -> Gaussian:
    g = torch.Generator().manual_seed(seed)
    return Gaussian(
        torch.randn(n, dim, generator=g, dtype=torch.float64).requires_grad_(),
        (0.3 * torch.randn(n, dim, generator=g, dtype=torch.float64)).requires_grad_(),
    )


def double_loop(
    premise: Gaussian,
    entailment: Gaussian,
    contradiction: Gaussian,
    objective: str,
    kind: str,
    tau: float,
    has: list[bool],
    premises: list[int],
    neutral: Gaussian | None = None,
    has_neutral: list[bool] | None = None,
    two_way: Sequence[int] = (),
) -> Tensor:
    """Eq. 4 as it is written: for every row, the positive over the sum of all candidates.

    Left out: contradictions and neutral pairs that are missing, and the entailments of other rows with the same premise; in the
    rows of `two_way` also the reversed pairs with their premise.
    """

    def sim(a: Gaussian, b: Gaussian) -> Tensor:
        if objective == "simcse":
            return torch.dot(a.mean, b.mean) / (a.mean.norm() * b.mean.norm())
        return similarity(a, b, kind)  # type: ignore[arg-type]

    total = torch.zeros((), dtype=torch.float64)
    n = len(premise)
    for i in range(n):
        candidates = [sim(entailment[j], premise[i]) for j in range(n) if j == i or premises[j] != premises[i]]
        positive = sim(entailment[i], premise[i])
        if "con" in objective or objective == "simcse":
            candidates += [sim(contradiction[j], premise[i]) for j in range(n) if has[j]]
        if neutral is not None:
            candidates += [sim(neutral[j], premise[i]) for j in range(n) if has_neutral is None or has_neutral[j]]
        if "rev" in objective:
            candidates += [sim(premise[j], entailment[i]) for j in range(n) if i not in two_way or premises[j] != premises[i]]
        total = total - torch.log(
            torch.exp(positive / tau) / torch.stack([torch.exp(candidate / tau) for candidate in candidates]).sum()
        )
    return total / n


def assert_same(loss: Tensor, expected: Tensor, *roles: Gaussian) -> None:
    """Equal values, and equal gradients to every role; a role that neither uses has the gradient zero."""
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    tensors = [t for role in roles for t in (role.mean, role.log_var)]
    for ours, theirs in zip(
        torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, tensors, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
