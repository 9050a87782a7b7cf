"""How sure a difference between two models on one set of pairs is: the paired bootstrap (Efron and Tibshirani 1993, chapter 16).

Both models are resampled together, since what is hard for one is hard for the other; and the pairs of one premise together, since
they are no independent draws (SNLI has three of each).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline import metrics

Statistic = Callable[[NDArray[np.int64]], float]
"""(n,) how often each pair was drawn → the metric of what was drawn; NaN where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A metric of two models on the same pairs, in points; and the interval of new − old."""

    old: float
    new: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """new − old."""
        return self.new - self.old


def paired_bootstrap(
    pairs: Mapping[str, tuple[Statistic, Statistic]],
    groups: ArrayLike,
    *,
    resamples: int,
    confidence: float,
    seed: int = 0,
) -> dict[str, Difference]:
    """The difference new − old of each metric with its percentile interval, all over the same draws.

    Args:
        pairs: metric → (old, new).
        groups: (n,) which pairs are drawn together.
        resamples: draws; one in which a metric has no value (no entailment was drawn) does not count for it.
        confidence: share of the draws that the interval holds, as much on either side.

    Raises:
        ValueError: there are no pairs.
    """
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    if not len(group):
        raise ValueError("no pairs to draw from")
    count = int(group.max()) + 1
    random = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(resamples):
        times = np.bincount(random.integers(0, count, count), minlength=count)[group]
        for name, (old, new) in pairs.items():
            drawn[name].append(new(times) - old(times))
    once = np.ones(len(group), dtype=np.int64)
    out: dict[str, Difference] = {}
    for name, (old, new) in pairs.items():
        values = np.asarray(drawn[name])
        values = values[~np.isnan(values)]
        edge = (1 - confidence) / 2
        low, high = np.quantile(values, (edge, 1 - edge)) if len(values) else (float("nan"), float("nan"))
        out[name] = Difference(old=old(once), new=new(once), low=float(low), high=float(high))
    return out


def pr_auc(labels: ArrayLike, scores: ArrayLike) -> Statistic:
    """PR-AUC × 100 of `pipeline.metrics.pr_auc`; sorts once, whatever is drawn."""
    y, s = np.asarray(labels, dtype=bool), np.asarray(scores, dtype=np.float64)
    falling = np.argsort(s, kind="stable")[::-1]
    y, s = y[falling], s[falling]
    last = np.append(np.flatnonzero(np.diff(s)), len(s) - 1)

    def of(times: NDArray[np.int64]) -> float:
        weight = times[falling]
        right, called = np.cumsum(weight * y)[last], np.cumsum(weight)[last]
        if right[-1] == 0 or right[-1] == called[-1]:
            return float("nan")
        # Where nothing was drawn yet, the curve is still at its end, (1, 0).
        precision = np.divide(right, called, out=np.ones(len(last)), where=called > 0)
        recall = right / right[-1]
        return 100 * float(np.trapezoid(np.append(1.0, precision), np.append(0.0, recall)))

    return of


def share(right: ArrayLike, among: ArrayLike | None = None) -> Statistic:
    """Per cent of the pairs that are right, among those that count."""
    r = np.asarray(right, dtype=bool)
    a = np.ones(len(r), dtype=bool) if among is None else np.asarray(among, dtype=bool)
    r = r & a

    def of(times: NDArray[np.int64]) -> float:
        every = int(times[a].sum())
        return 100 * int(times[r].sum()) / every if every else float("nan")

    return of


def spearman(a: ArrayLike, b: ArrayLike) -> Statistic:
    """Spearman's rank correlation × 100."""
    x, y = np.asarray(a), np.asarray(b)

    def of(times: NDArray[np.int64]) -> float:
        rows = np.repeat(np.arange(len(x)), times)
        if len(rows) < 2 or not np.ptp(x[rows]) or not np.ptp(y[rows]):
            return float("nan")
        return 100 * metrics.spearman(x[rows], y[rows])

    return of
