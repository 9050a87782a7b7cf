"""Relation heads with drawn weights and a scale of round numbers."""

from __future__ import annotations

import torch

from pipeline.models.relation_head import Relation, RelationHead, RelationScale, ScoreKind
from pipeline.models.token_head import TokenHead


def drawn_scale(kind: ScoreKind = "kl", weight: float = 0.5) -> RelationScale:
    return RelationScale(
        score_kind=kind,
        similarity_weight=weight,
        related_deviation=2.0,
        similarity_deviation=0.5,
        slope=1.5,
        offset=-0.25,
        temperature=1.25,
        pairs="d" * 64,
        epochs=5,
        seed=1,
    )


def drawn_relation(dim: int, kind: ScoreKind = "kl", weight: float = 0.5, *, difference: bool = False) -> Relation:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = RelationHead(dim, difference=difference).eval()
        head.center.normal_()
        head.spread.uniform_(0.5, 2.0)
    return Relation(head, drawn_scale(kind, weight))


def drawn_token_relation(hidden: int, dim: int = 8, kind: ScoreKind = "kl") -> Relation:
    """A head of tokens for a backbone with this hidden size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = TokenHead(hidden, dim).eval()
        for layer in ("query.2", "out.1"):
            # Not the small differences of a new head.
            head.get_parameter(f"{layer}.weight").data.mul_(4)
    return Relation(head, drawn_scale(kind))
