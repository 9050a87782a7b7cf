"""Relation heads with drawn weights and a scale of round numbers."""

from __future__ import annotations

import torch

from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.relation_head import Relation, RelationScale, ScoreKind
from pipeline.models.token_head import TokenHead, TokenProjection


def drawn_scale(kind: ScoreKind = "kl", weight: float = 0.5) -> RelationScale:
    return RelationScale(
        score_kind=kind,
        similarity_weight=weight,
        similarity_scale=2.0,
        slope=0.75,
        offsets=(0.25, -0.5, 1.0, 0.0),
        pairs="d" * 64,
        epochs=5,
        seed=1,
    )


def drawn_relation(hidden: int = 32, kind: ScoreKind = "kl", weight: float = 0.5, dim: int = 8) -> Relation:
    """A relation head for a backbone with this hidden size, whose token vectors have `dim` dimensions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = TokenHead(TokenProjection(hidden, dim)).eval()
        for layer in ("query.2", "out.1"):
            # Not the small differences of a new head.
            head.get_parameter(f"{layer}.weight").data.mul_(4)
    return Relation(head, drawn_scale(kind, weight))


def with_tokens(gaussians: Gaussian, dim: int = 8, seed: int = 0) -> Gaussian:
    """The Gaussians as those of sentences of 1 to 9 tokens."""
    random = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 10, (len(gaussians),), generator=random)
    table = torch.randint(-127, 128, (int(length.sum()), dim), generator=random).to(torch.int8)
    return Gaussian(gaussians.mean, gaussians.log_var, tokens=TokenVectors.of_packed(table, length))
