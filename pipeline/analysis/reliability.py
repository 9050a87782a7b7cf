"""The score read as the probability of entailment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.analysis.columns import Floats, Mask, numbers
from pipeline.data.schema import ENTAILMENT


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Pairs with probabilities between lower and upper."""

    lower: float
    upper: float
    pairs: int
    mean_score: float
    entailed: float
    """Share of entailment."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """One way of binning."""

    bins: tuple[CalibrationBin, ...]
    expected_error: float
    """Expected calibration error: mean over pairs of their bin's |mean score − share of entailment|."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The score read as the probability of entailment."""

    pairs: int
    clipped: int
    """Scores outside [0, 1], taken as the nearer end."""
    brier: float
    """Mean squared difference of probability and truth (1 entailment, 0 not)."""
    equal_width: Reliability
    """Edges at k / bins; a score on an edge belongs to the bin above, 1 to the last."""
    equal_mass: Reliability
    """By rank, about as many pairs in each; equal scores stay together, edges are the lowest and highest score."""


def calibration(table: pa.Table, bins: int = 10) -> Calibration:
    """How far the score is a probability of entailment.

    Similarities are in (0, 1] already. Cosines are in [−1, 1]: those below 0 are taken as 0, the least a probability can say
    (and those that rounding lifts above 1, as 1).

    Raises:
        ValueError: no pairs.
    """
    score = numbers(table, "score")
    if not len(score):
        raise ValueError("no scores to calibrate")
    entailed = numbers(table, "label") == ENTAILMENT
    p = np.clip(score, 0, 1)
    inner = np.arange(1, bins) / bins
    # Rank of the first among equals, so that they share a bin.
    ranks = np.searchsorted(np.sort(p), p)
    by_rank = ranks * bins // len(p)
    edges = [(k / bins, (k + 1) / bins) for k in range(bins)]
    return Calibration(
        pairs=len(p),
        clipped=int((p != score).sum()),
        brier=float(np.square(p - entailed).mean()),
        equal_width=_reliability(p, entailed, np.searchsorted(inner, p, side="right"), edges),
        equal_mass=_reliability(p, entailed, by_rank, None),
    )


def _reliability(
    p: Floats, entailed: Mask, place: NDArray[np.integer], edges: Sequence[tuple[float, float]] | None
) -> Reliability:
    bins: list[CalibrationBin] = []
    for k in np.unique(place).tolist():
        here = place == k
        lower, upper = edges[k] if edges else (float(p[here].min()), float(p[here].max()))
        bins.append(CalibrationBin(lower, upper, int(here.sum()), float(p[here].mean()), float(entailed[here].mean())))
    return Reliability(tuple(bins), sum(b.pairs * abs(b.mean_score - b.entailed) for b in bins) / len(p))
