"""Calibration: how well scores work as probabilities of entailment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.schema import ENTAILMENT
from pipeline.families.pairs.analysis.columns import Floats, Mask, numbers


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """The pairs with probabilities between lower and upper."""

    lower: float
    upper: float
    pairs: int
    mean_score: float
    entailed: float
    """Share of entailments."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """The bins of one way of binning, and its calibration error."""

    bins: tuple[CalibrationBin, ...]
    expected_error: float
    """Expected calibration error: mean over the pairs of |mean score − share of entailments| of their bins."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of scores as probabilities of entailment."""

    pairs: int
    clipped: int
    """Number of scores outside [0, 1]; each is replaced by the nearer end."""
    brier: float
    """Mean squared difference of probability and truth (1 entailment, 0 not)."""
    equal_width: Reliability
    """Edges at k / bins. A score on an edge belongs to the bin above, a score of 1 to the last bin."""
    equal_mass: Reliability
    """By rank, with about the same number of pairs in each bin. Equal scores share a bin. Its edges are its lowest and highest
    score."""


def calibration(table: pa.Table, bins: int = 10) -> Calibration:
    """How well the score works as a probability of entailment.

    Similarities are in (0, 1] already. Cosines are in [−1, 1]: values below 0 count as 0, the lowest probability, and values that
    rounding raises above 1 count as 1.

    Raises:
        ValueError: no pairs.
    """
    score = numbers(table, "score")
    if not len(score):
        raise ValueError("no scores to calibrate")
    entailed = numbers(table, "label") == ENTAILMENT
    p = np.clip(score, 0, 1)
    inner = np.arange(1, bins) / bins
    # Equal scores get the rank of the first, so that they share a bin.
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
