"""Confidence in a difference between two models on one set: the paired bootstrap (Efron and Tibshirani 1993, chapter 16).

Both models are resampled together, because pairs that are hard for one are hard for the other. Pairs with the same premise are
also drawn together, because they are not independent (SNLI has three for each premise).

The interval is gain ± t · √(G / (G − 1)) times the standard deviation of the resampled gains, for G groups. t is the quantile of
Student's distribution with G − 1 degrees of freedom (same book, chapter 12). The root corrects the variance of resampled groups,
which is too small. For many groups, this is the standard normal interval (chapter 13); with few, that one is too narrow. It needs
no more draws at 99.99 % than at 95 %. The ends of a percentile interval would depend on a few extreme draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from pipeline.evaluation import metrics

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(n, B) how many times each of n pairs occurs in each of B draws → (B,) the metric of each draw; NaN if it is undefined."""

# Numbers in a block of draws: half a megabyte, which fits into a processor's cache.
_BLOCK = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A metric of two models on the same pairs, in points, and the interval of new − old."""

    old: float
    new: float
    error: float
    """Standard error of new − old; NaN if there is one group, or if fewer than two draws have a value."""
    low: float
    high: float

    @property
    def gain(self) -> float:
        """new − old."""
        return self.new - self.old


def paired_bootstrap(
    pairs: Mapping[str, tuple[Statistic, Statistic]], groups: ArrayLike, *, resamples: int, confidence: float
) -> dict[str, Difference]:
    """The difference new − old of each metric with its interval, all over the same draws.

    Args:
        pairs: metric → (old, new).
        groups: (n,) group of each pair; the pairs of a group are drawn together.
        resamples: number of draws. A draw in which a metric is undefined (no entailment drawn) does not count for that metric.
        confidence: probability that the interval covers the true difference; misses are equally likely on either side.

    Raises:
        ValueError: there are no pairs.
    """
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    if not len(group):
        raise ValueError("no pairs to draw from")
    count = int(group.max()) + 1
    random = np.random.default_rng(0)
    block = max(1, _BLOCK // len(group))
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in pairs}
    for start in range(0, resamples, block):
        draws = random.integers(0, count, (min(block, resamples - start), count))
        # The groups of draw b have the numbers from b · count on.
        numbers = (draws + count * np.arange(len(draws))[:, None]).ravel()
        times = np.bincount(numbers, minlength=draws.size).reshape(draws.shape).T[group].astype(np.float64)
        for name, (old, new) in pairs.items():
            drawn[name].append(new(times) - old(times))
    once = np.ones((len(group), 1))
    # Draws of a single group are all equal, which says nothing about other groups.
    t = float(stdtrit(count - 1, (1 + confidence) / 2)) * (count / (count - 1)) ** 0.5 if count > 1 else float("nan")
    out: dict[str, Difference] = {}
    for name, (old, new) in pairs.items():
        values = np.concatenate(drawn[name])
        values = values[~np.isnan(values)]
        error = float(np.std(values, ddof=1)) if len(values) > 1 and count > 1 else float("nan")
        before, after = float(old(once)[0]), float(new(once)[0])
        gain = after - before
        out[name] = Difference(old=before, new=after, error=error, low=gain - t * error, high=gain + t * error)
    return out


def pr_auc(labels: ArrayLike, scores: ArrayLike) -> Statistic:
    """PR-AUC × 100, as `pipeline.evaluation.metrics.pr_auc`; sorts once for all draws."""
    y, s = np.asarray(labels, dtype=bool), np.asarray(scores, dtype=np.float64)
    falling = np.argsort(s, kind="stable")[::-1]
    y, s = y[falling], s[falling]
    # Pairs of equal score are called entailment together. At each distinct score: `called` pairs, `right` of them entailments.
    called = np.append(np.flatnonzero(np.diff(s)), len(s) - 1) + 1
    right = np.cumsum(y)[called - 1]
    # Recall rises, and the trapezoid has a width, only at steps that call more entailments.
    rises = np.flatnonzero(np.diff(right, prepend=0))
    steps = [(right[rises], called[rises]), (np.append(0, right)[rises], np.append(0, called)[rises])]
    entailments = falling[y]

    def statistic(times: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn, drawn_right = _running_sums(times[falling]), _running_sums(times[entailments])
        recalled, known = (drawn_right[right] for right, _ in steps)
        after, before = (_precision(part, drawn[called]) for part, (_, called) in zip((recalled, known), steps, strict=True))
        area = ((after + before) * (recalled - known)).sum(axis=0) / 2
        total = drawn_right[-1]
        defined = (total > 0) & (total < drawn[-1])
        return np.divide(100 * area, total, out=np.full(len(total), np.nan), where=defined)

    return statistic


def directed_pr_auc(labels: ArrayLike, reverse_labels: ArrayLike, scores: ArrayLike, reverse_scores: ArrayLike) -> Statistic:
    """Directed PR-AUC × 100; a pair that is drawn twice counts twice, also turned round. Arguments as `metrics.directed`."""
    truth, directed_scores, pairs = metrics.directed(labels, reverse_labels, scores, reverse_scores)
    statistic = pr_auc(truth, directed_scores)
    return lambda times: statistic(times[pairs])


def _precision(right: NDArray[np.float64], called: NDArray[np.float64]) -> NDArray[np.float64]:
    # As long as no pair is called, the curve is at its end: precision 1, recall 0.
    return np.divide(right, called, out=np.ones_like(right), where=called > 0)


def _running_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n + 1, B) sums of the first 0, 1, … n rows."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums


def share(right: ArrayLike, among: ArrayLike | None = None) -> Statistic:
    """Percentage of right pairs among the pairs that count (default: all).

    Args:
        right: (n,) whether each pair is right, or the share of models that are right on it.
    """
    r = np.asarray(right, dtype=np.float64)
    counted = np.ones(len(r)) if among is None else np.asarray(among, dtype=bool).astype(np.float64)
    hits = r * counted

    def statistic(times: NDArray[np.float64]) -> NDArray[np.float64]:
        total = counted @ times
        return np.divide(100 * (hits @ times), total, out=np.full(len(total), np.nan), where=total > 0)

    return statistic


def mean_over(kinds: ArrayLike, values: ArrayLike) -> Statistic:
    """The mean over the kinds of the mean of their rows' values, × 100; kinds that a draw lacks do not count in it.

    Args:
        kinds: (n,) the kind of each row.
        values: (n,)
    """
    kind = np.asarray(kinds)
    shares = [share(values, kind == one) for one in np.unique(kind)]

    def statistic(times: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.nanmean([one(times) for one in shares], axis=0))

    return statistic


def spearman(a: ArrayLike, b: ArrayLike) -> Statistic:
    """Spearman's rank correlation × 100."""
    x, y = np.asarray(a), np.asarray(b)

    def statistic(times: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([once(column) for column in times.T.astype(np.int64)])

    def once(times: NDArray[np.int64]) -> float:
        rows = np.repeat(np.arange(len(x)), times)
        if len(rows) < 2 or not np.ptp(x[rows]) or not np.ptp(y[rows]):
            return float("nan")
        return 100 * metrics.spearman(x[rows], y[rows])

    return statistic
