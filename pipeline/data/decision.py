"""The rules by which a pair is called something: the one place, for Python, the command line, HTTP and the page at /."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from pipeline.data.schema import ENTAILMENT, RELATIONS, RelationName

EntailmentIf = Literal[">=", ">"]


def called(scores: Any, threshold: float, entailment_if: EntailmentIf) -> Any:
    """(n,) true if a pair is called entailment: its score is at or above the threshold, or only above it
    (`evaluate.entailment_if`). An array or a tensor, like `scores`."""
    return scores >= threshold if entailment_if == ">=" else scores > threshold


def decided(relation: ArrayLike, threshold: float | None, entailment_if: EntailmentIf) -> list[RelationName]:
    """What each of n pairs is called: entailment as `called` says; otherwise the likeliest of the other relations.

    Args:
        relation: (n, 4) probabilities of `RELATIONS`.
        threshold: None calls each pair the likeliest of all.
    """
    chances = np.asarray(relation, dtype=np.float64).reshape(-1, len(RELATIONS))
    if threshold is not None:
        yes = called(chances[:, ENTAILMENT], threshold, entailment_if)
        chances = np.where(np.arange(len(RELATIONS)) == ENTAILMENT, np.where(yes, np.inf, -np.inf)[:, None], chances)
    return [RELATIONS[best] for best in chances.argmax(1)]
