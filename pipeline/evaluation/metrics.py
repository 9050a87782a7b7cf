"""Metrics: areas under precision-recall curves, the best threshold, direction, rank correlation. numpy in, floats out.

Every worker of a training run imports this module at each start, so it imports numpy only: sklearn would take a second and
scipy.stats another. The curve and its areas equal sklearn's bit by bit (tests/evaluation/test_metrics.py).
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (scipy leaves some of its functions untyped)

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import ENTAILMENT


def _binary(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    y, s = np.asarray(labels, dtype=bool), np.asarray(scores, dtype=np.float64)
    if y.ndim != 1 or y.shape != s.shape:
        raise ValueError(f"labels {y.shape} and scores {s.shape} must be two vectors of one length")
    if not np.isfinite(s).all():
        raise ValueError(f"{int((~np.isfinite(s)).sum())} of {len(s)} scores are not finite")
    return y, s


def pr_curve(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(precision, recall, threshold) by rising threshold, one point for each distinct score.

    Precision and recall have one more point, the end (1, 0). A pair is called an entailment if its score is not below the
    threshold. Arguments and errors as in `pr_auc`.
    """
    y, s = _binary(labels, scores)
    if y.all() or not y.any():
        raise ValueError("labels hold one class only: a precision-recall curve needs both")
    falling = np.argsort(s, kind="stable")[::-1]
    y, s = y[falling], s[falling]
    # Pairs of equal score are called entailment together.
    last = np.append(np.flatnonzero(np.diff(s)), len(s) - 1)
    right = np.cumsum(y)[last].astype(np.float64)
    precision, recall = right / (last + 1), right / right[-1]
    return np.append(precision[::-1], 1.0), np.append(recall[::-1], 0.0), s[last][::-1]


def pr_auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Area under the precision-recall curve by the trapezoid rule, as the paper's released code computes it.

    Args:
        labels: (n,), true if the pair is an entailment.
        scores: (n,), higher means more entailed.

    Raises:
        ValueError: one class only, different lengths, or a score that is not finite.
    """
    precision, recall, _ = pr_curve(labels, scores)
    # Negative, because recall falls along the curve.
    return -float(np.trapezoid(precision, recall))


def average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """Step-wise area under the same curve (average precision); arguments and errors as in `pr_auc`."""
    precision, recall, _ = pr_curve(labels, scores)
    return -float(np.sum(np.diff(recall) * precision[:-1]))


def directed(
    labels: ArrayLike, reverse_labels: ArrayLike, scores: ArrayLike, reverse_scores: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.intp]]:
    """The rows that ask for entailment and for its direction at once; give them to `pr_auc` or `average_precision`.

    Positives are the entailment pairs that hold one way: those whose reverse is not known to hold. Negatives are the neutral and
    contradiction pairs, and every positive turned round. A symmetric score cannot tell a positive from the same pair turned
    round, so its average precision is at most about a half. Entailment pairs that are known to hold both ways are left out.

    Args:
        labels: (n,) 0 entailment, 1 neutral, 2 contradiction.
        reverse_labels: (n,) the label of the pair turned round; −1 if unknown.
        scores: (n,) of "premise entails hypothesis".
        reverse_scores: (n,) of "hypothesis entails premise".

    Returns:
        (labels, scores, numbers of the pairs) of m rows.
    """
    y, reverse = np.asarray(labels), np.asarray(reverse_labels)
    one_way = np.flatnonzero((y == ENTAILMENT) & (reverse != ENTAILMENT))
    rest = np.flatnonzero(y != ENTAILMENT)
    pairs = np.concatenate([one_way, rest, one_way])
    turned = np.arange(len(pairs)) >= len(one_way) + len(rest)
    directed_scores = np.where(
        turned, np.asarray(reverse_scores, dtype=np.float64)[pairs], np.asarray(scores, dtype=np.float64)[pairs]
    )
    return np.arange(len(pairs)) < len(one_way), directed_scores, pairs


def best_threshold(
    labels: ArrayLike, scores: ArrayLike, step: float = 0.001, entailment_if: EntailmentIf = ">="
) -> tuple[float, float]:
    """The threshold with the highest accuracy among 0, step, 2·step … 1; on ties the lowest.

    Returns:
        (threshold, accuracy in [0, 1]).

    Raises:
        ValueError: empty input, different lengths, or a score that is not finite.
    """
    y, s = _binary(labels, scores)
    if not len(y):
        raise ValueError("no scores to sweep a threshold over")
    steps = round(1 / step)
    thresholds = np.arange(steps + 1) / steps
    side = "left" if entailment_if == ">=" else "right"
    # Correct are the entailments that are not below the threshold and the other pairs that are below it.
    entailments_below = np.searchsorted(np.sort(s[y]), thresholds, side=side)
    rest_below = np.searchsorted(np.sort(s[~y]), thresholds, side=side)
    correct = (y.sum() - entailments_below) + rest_below
    best = int(np.argmax(correct))
    return float(thresholds[best]), float(correct[best] / len(y))


def accuracy_at(labels: ArrayLike, scores: ArrayLike, threshold: float, entailment_if: EntailmentIf = ">=") -> float:
    """Accuracy in [0, 1] if a score at or above the threshold (with `entailment_if` ">": above it) means entailment."""
    y, s = _binary(labels, scores)
    return float((called(s, threshold, entailment_if) == y).mean())


def share_right(forward: ArrayLike, backward: ArrayLike, ties: float = 0.0) -> float:
    """Share of pairs with forward > backward, in [0, 1]; a tie counts `ties`; NaN for no pairs."""
    f, b = np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64)
    return float(((f > b) + ties * (f == b)).mean()) if len(f) else float("nan")


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation in [−1, 1]."""
    # Imported here, because only graded pairs need it.
    from scipy.stats import spearmanr

    result: Any = spearmanr(np.asarray(a), np.asarray(b))
    return float(result.statistic)
