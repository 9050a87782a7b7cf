"""The rule for calling a pair entailment: score at or above the threshold, or only above it (`evaluate.entailment_if`)."""

from __future__ import annotations

from typing import Any, Literal

EntailmentIf = Literal[">=", ">"]


def called(scores: Any, threshold: float, entailment_if: EntailmentIf) -> Any:
    """(n,) true if a pair is called entailment; an array or a tensor, like `scores`."""
    return scores >= threshold if entailment_if == ">=" else scores > threshold
