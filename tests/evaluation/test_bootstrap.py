"""Paired bootstrap: its statistics against plain ones on the drawn rows, its intervals against what theory says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.evaluation import bootstrap, metrics


def drawn(r: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.bincount(r.integers(0, n, n), minlength=n)


@pytest.mark.parametrize("seed", range(5))
def test_statistics_are_those_of_the_rows_that_were_drawn(seed: int) -> None:
    r = np.random.default_rng(seed)
    n = 200
    # Rounded, so that there are ties.
    scores, labels = r.random(n).round(2), r.random(n) < 0.4
    gold = r.random(n).round(1)
    among = scores > 0.5
    times = np.stack([drawn(r, n) for _ in range(3)], axis=1).astype(np.float64)
    pr_auc, right, part, rank = (
        statistic(times)
        for statistic in (
            bootstrap.pr_auc(labels, scores),
            bootstrap.share(labels),
            bootstrap.share(labels, among),
            bootstrap.spearman(scores, gold),
        )
    )
    for k in range(3):
        rows = np.repeat(np.arange(n), times[:, k].astype(int))
        assert pr_auc[k] == pytest.approx(100 * metrics.pr_auc(labels[rows], scores[rows]), abs=1e-9)
        assert right[k] == pytest.approx(100 * labels[rows].mean())
        assert part[k] == pytest.approx(100 * labels[rows][among[rows]].mean())
        assert rank[k] == pytest.approx(100 * metrics.spearman(scores[rows], gold[rows]))


def test_what_has_no_value_is_nan() -> None:
    # Nothing; nothing but entailments, which have no curve either; all of it.
    times = np.array([[0, 2, 1], [0, 0, 1], [0, 0, 1]], dtype=np.float64)
    statistics = [
        bootstrap.pr_auc([True, False, False], [0.1, 0.2, 0.3]),
        bootstrap.share([True, False, False], [False, True, False]),
        bootstrap.spearman([1, 2, 3], [1, 2, 3]),
    ]
    assert [np.isnan(statistic(times)).tolist() for statistic in statistics] == [[True, True, False]] * 3
    # With one group every draw is the same: no error, no interval, nothing that could be above a margin, whatever the gain.
    found = bootstrap.paired_bootstrap({"x": (statistics[0], statistics[0])}, [0, 0, 0], resamples=100, confidence=0.9)["x"]
    assert found.gain == 0
    assert np.isnan([found.error, found.low, found.high]).all()
    better = bootstrap.share([True, True]), bootstrap.share([False, False])
    found = bootstrap.paired_bootstrap({"x": (better[1], better[0])}, [4, 4], resamples=100, confidence=0.9)["x"]
    assert (found.gain, found.low > 0) == (100, False)
    alone = bootstrap.share([True], [False])
    found = bootstrap.paired_bootstrap({"x": (alone, alone)}, [0], resamples=100, confidence=0.9)["x"]
    assert np.isnan([found.error, found.low, found.high]).all()
    assert not found.low > 0


def test_a_pair_drawn_twice_counts_twice_turned_round_too() -> None:
    r = np.random.default_rng(2)
    labels, reverse, score, backward = r.integers(0, 3, 40), r.integers(-1, 3, 40), r.random(40), r.random(40)
    times = r.integers(0, 3, (40, 5))
    found = bootstrap.directed_pr_auc(labels, reverse, score, backward)(times.astype(np.float64))
    for draw, value in zip(times.T, found, strict=True):
        rows = np.repeat(np.arange(40), draw)
        truth, scores, _ = metrics.directed(labels[rows], reverse[rows], score[rows], backward[rows])
        assert value == pytest.approx(100 * metrics.pr_auc(truth, scores))


def test_with_few_groups_the_interval_is_student_s() -> None:
    """Of equal models, a share of the lower ends is above 0: as many as the confidence says, from few groups too."""
    above = 0
    for seed in range(1000):
        gains = np.random.default_rng(seed).normal(size=5)
        found = bootstrap.paired_bootstrap(
            {"x": (bootstrap.share(np.zeros(5)), bootstrap.share(gains))}, np.arange(5), resamples=200, confidence=0.9
        )["x"]
        above += found.low > 0
    assert 0.035 * 1000 <= above <= 0.065 * 1000


def clustered(premises: int, a_premise: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Premise of each pair, and whether two models are right on it: the same for all pairs of a premise."""
    r = np.random.default_rng(seed)
    old, new = (np.repeat(r.random(premises) < share, a_premise) for share in (0.6, 0.7))
    return np.repeat(np.arange(premises), a_premise), old, new


def error_of(old: NDArray[np.bool_], new: NDArray[np.bool_], groups: NDArray[np.int64], resamples: int = 4000) -> float:
    pairs = {"accuracy": (bootstrap.share(old), bootstrap.share(new))}
    return bootstrap.paired_bootstrap(pairs, groups, resamples=resamples, confidence=0.95)["accuracy"].error


def test_the_error_of_pr_auc_over_premises_is_that_of_a_plain_bootstrap_of_whole_premises() -> None:
    r = np.random.default_rng(5)
    premises, a_premise, draws = 60, 5, 400
    premise = r.permutation(np.repeat(np.arange(premises) * 7, a_premise))
    labels = r.random(len(premise)) < 0.4
    # With a part of the score shared by all its pairs, a premise is closer to one draw than to five.
    old, new = (labels + r.normal(size=premises)[premise // 7] + 0.3 * r.normal(size=len(premise)) for _ in range(2))
    rows = [np.flatnonzero(premise == p) for p in np.unique(premise)]

    def plain(chosen: NDArray[np.int64]) -> float:
        drawn = np.concatenate([rows[p] for p in chosen])
        return 100 * (metrics.pr_auc(labels[drawn], new[drawn]) - metrics.pr_auc(labels[drawn], old[drawn]))

    # The same draws of premises, each with all its rows.
    same = np.random.default_rng(0)
    expected = np.std([plain(same.integers(0, premises, premises)) for _ in range(draws)], ddof=1)
    pairs = {"x": (bootstrap.pr_auc(labels, old), bootstrap.pr_auc(labels, new))}
    found, apart = (
        bootstrap.paired_bootstrap(pairs, groups, resamples=draws, confidence=0.95)["x"].error
        for groups in (premise, np.arange(len(premise)))
    )
    assert found == pytest.approx(expected, rel=1e-9)
    assert apart != pytest.approx(expected, rel=0.02)


def test_the_interval_is_student_s_around_the_gain() -> None:
    premise, old, new = clustered(200, 3, seed=3)
    pairs = {"accuracy": (bootstrap.share(old), bootstrap.share(new))}
    # Quantiles of Student's distribution with 199 degrees of freedom, times √(200/199).
    for confidence, z in ((0.6827, 1.00504), (0.95, 1.97690), (0.999, 3.34854)):
        found = bootstrap.paired_bootstrap(pairs, premise, resamples=300, confidence=confidence)["accuracy"]
        assert found.low == pytest.approx(found.gain - z * found.error, abs=1e-3)
        assert found.high == pytest.approx(found.gain + z * found.error, abs=1e-3)


def test_how_draws_are_cut_into_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    premise, old, new = clustered(50, 3, seed=4)
    whole = error_of(old, new, premise, resamples=100)
    monkeypatch.setattr(bootstrap, "_BLOCK", 7 * len(premise))
    assert error_of(old, new, premise, resamples=100) == pytest.approx(whole, rel=1e-12)


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
