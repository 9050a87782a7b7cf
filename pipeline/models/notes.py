"""What a model can do, by its notes: the section `trial` of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.models.relation_head import ScoreKind


def has_operators(notes: Mapping[str, Any]) -> bool:
    """Whether a model with these notes has sentence operators."""
    return notes.get("trial", {}).get("objective", {}).get("name") == "intersent"


def has_decoder(notes: Mapping[str, Any]) -> bool:
    """Whether a model with these notes writes sentences."""
    return has_operators(notes) and bool(notes["trial"]["objective"].get("generation_weight"))


def knows_entailment(notes: Mapping[str, Any]) -> bool:
    """Whether the objective in the model's notes trains which sentence entails which; yes if they have none."""
    objective = notes.get("trial", {}).get("objective", {})
    return not objective or "similarity" in objective


def score_kind_of(notes: Mapping[str, Any]) -> ScoreKind:
    """The score that fits the objective in the model's notes; kl if they have none.

    An objective that trains variances has a key `similarity`, or `score: kl`. All others compare means by their cosine.
    """
    objective = notes.get("trial", {}).get("objective", {})
    if objective.get("similarity") == "kl-dimwise":
        return "kl-dimwise"
    return "kl" if knows_entailment(notes) or objective.get("score") == "kl" else "cosine"
