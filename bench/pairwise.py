"""The loss of Eq. 4 (all three blocks), forward and backward, D = 768, float32, against an implementation by broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.baselines import broadcast_loss
from bench.measure import Row, alone, compared, in_turn, peak_mb, use_threads
from pipeline.families.pairs.contrastive import make_objective
from pipeline.gaussian.distribution import Gaussian, SimilarityKind

DIM, TEMPERATURE = 768, 0.05
KINDS: tuple[SimilarityKind, ...] = ("kl", "kl-dimwise")


def run(quick: bool) -> list[Row]:
    """Both similarities at n = 256 against broadcasting, and `kl` at n = 4096, where broadcasting would take a terabyte."""
    use_threads()
    n, large, repeats = (16, 64, 1) if quick else (256, 4096, 5)
    rows = [
        compared(
            f"loss {kind}, n = {n}, D = {DIM}, against broadcasting",
            "s",
            in_turn({"ours": loss(n, kind), "plain": loss(n, kind, plain=True)}, repeats).values(),
            [peak_mb("bench.pairwise:loss", n=n, kind=kind, plain=plain) for plain in (False, True)],
        )
        for kind in KINDS
    ]
    found = alone("bench.pairwise:loss", n=large, kind="kl")
    name, note = f"loss kl, n = {large}, D = {DIM}", "peak of the whole process; one run"
    return [*rows, Row(name=name, ours=found["seconds"], unit="s", peak_mb=found["peak_mb"], note=note)]


def loss(
    n: int, kind: SimilarityKind, plain: bool = False, dim: int = DIM, device: torch.device | str = "cpu"
) -> Callable[[], None]:
    """Forward and backward of the loss of n triplets, with random representations similar to those of a trained encoder."""
    use_threads()
    generator = torch.Generator().manual_seed(1)

    def leaf(spread: float) -> Tensor:
        return (spread * torch.randn(n, dim, generator=generator)).to(device).requires_grad_()

    roles = [(leaf(0.5), leaf(0.3)) for _ in range(3)]
    objective, everyone = make_objective("ent+con+rev", kind, TEMPERATURE), torch.ones(n, dtype=torch.bool, device=device)

    def run_once() -> None:
        if plain:
            value = broadcast_loss(roles, kind, TEMPERATURE)
        else:
            value = objective.loss([Gaussian(*role) for role in roles], [everyone] * len(roles), n, {}, None) / n
        value.backward()
        for role in roles:
            for tensor in role:
                tensor.grad = None

    return run_once
