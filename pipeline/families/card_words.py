"""What a model card says of a model that its family knows: part `card` of a family has `words`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Texts of a card."""

    what: str
    """What the model is; {formula} and {objective} stand for its similarity and its objective."""
    purpose: str
    """What it is for, and what it is not for."""
    baselines: str
    """What its figures are compared with."""
    examples: str = ""
    """Lines of Python that show its further methods."""
