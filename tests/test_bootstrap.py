"""Paired bootstrap: its statistics against plain ones on the drawn rows, its intervals against what theory says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import bootstrap, metrics


def drawn(r: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.bincount(r.integers(0, n, n), minlength=n)


@pytest.mark.parametrize("seed", range(5))
def test_statistics_are_those_of_the_rows_that_were_drawn(seed: int) -> None:
    r = np.random.default_rng(seed)
    n = 200
    # Rounded, so that there are ties.
    scores, labels = r.random(n).round(2), r.random(n) < 0.4
    gold = r.random(n).round(1)
    times = drawn(r, n)
    rows = np.repeat(np.arange(n), times)
    assert bootstrap.pr_auc(labels, scores)(times) == pytest.approx(100 * metrics.pr_auc(labels[rows], scores[rows]), abs=1e-9)
    assert bootstrap.share(labels)(times) == pytest.approx(100 * labels[rows].mean())
    among = scores > 0.5
    assert bootstrap.share(labels, among)(times) == pytest.approx(100 * labels[rows][among[rows]].mean())
    assert bootstrap.spearman(scores, gold)(times) == pytest.approx(100 * metrics.spearman(scores[rows], gold[rows]))


def test_what_has_no_value_is_nan() -> None:
    none, all_of_one = np.zeros(3, dtype=int), np.array([2, 0, 0])
    statistic = bootstrap.pr_auc([True, False, False], [0.1, 0.2, 0.3])
    assert np.isnan(statistic(none))
    # Nothing but entailments has no curve either.
    assert np.isnan(statistic(all_of_one))
    assert np.isnan(bootstrap.share([True, False, False], [False, True, False])(all_of_one))
    assert np.isnan(bootstrap.spearman([1, 2, 3], [1, 2, 3])(all_of_one))


def test_the_interval_of_a_share_is_the_binomial_s() -> None:
    r = np.random.default_rng(1)
    n = 4000
    old, new = r.random(n) < 0.6, r.random(n) < 0.7
    found = bootstrap.paired_bootstrap(
        {"accuracy": (bootstrap.share(old), bootstrap.share(new))}, np.arange(n), resamples=2000, confidence=0.95
    )["accuracy"]
    half = 100 * 1.96 * np.std(new.astype(float) - old) / np.sqrt(n)
    assert found.gain == pytest.approx(100 * (new.mean() - old.mean()))
    assert found.low == pytest.approx(found.gain - half, abs=0.15)
    assert found.high == pytest.approx(found.gain + half, abs=0.15)


def test_pairs_of_one_premise_are_drawn_together() -> None:
    # Ten premises, each with a hundred pairs that come out alike: ten draws, not a thousand.
    right = np.repeat(np.random.default_rng(2).random(10) < 0.5, 100)
    wrong = np.zeros(1000, dtype=bool)

    def width(groups: NDArray[np.int64]) -> float:
        pairs = {"accuracy": (bootstrap.share(wrong), bootstrap.share(right))}
        found = bootstrap.paired_bootstrap(pairs, groups, resamples=500, confidence=0.95)["accuracy"]
        return found.high - found.low

    assert width(np.repeat(np.arange(10), 100)) > 8 * width(np.arange(1000))


def test_the_same_draws_for_both_and_every_time() -> None:
    r = np.random.default_rng(3)
    scores, labels = r.random(300), r.random(300) < 0.5
    pairs = {
        "same": (bootstrap.pr_auc(labels, scores), bootstrap.pr_auc(labels, scores)),
        "reversed": (bootstrap.pr_auc(labels, scores), bootstrap.pr_auc(labels, 1 - scores)),
    }
    found, again = (bootstrap.paired_bootstrap(pairs, np.arange(300), resamples=200, confidence=0.9) for _ in range(2))
    assert found == again
    assert (found["same"].low, found["same"].high) == (0, 0)
    narrow = bootstrap.paired_bootstrap(pairs, np.arange(300), resamples=200, confidence=0.5)["reversed"]
    assert found["reversed"].low < narrow.low < narrow.high < found["reversed"].high


def test_no_pairs_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        bootstrap.paired_bootstrap({}, [], resamples=100, confidence=0.95)
