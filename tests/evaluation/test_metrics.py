from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from sklearn.metrics import auc, average_precision_score, precision_recall_curve

from pipeline.evaluation import metrics


def brute_force(labels: np.ndarray, scores: np.ndarray, steps: int, at_least: bool) -> tuple[float, float]:
    best = (-1.0, -1.0)
    for k in range(steps + 1):
        called = scores >= k / steps if at_least else scores > k / steps
        accuracy = float((called == labels).mean())
        if accuracy > best[1]:
            best = (k / steps, accuracy)
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", [">=", ">"])
def test_best_threshold_equals_trying_each(seed: int, rule: metrics.EntailmentIf) -> None:
    r = np.random.default_rng(seed)
    # Rounded, so that scores fall exactly on thresholds.
    scores = r.random(300).round(2)
    labels = r.random(300) < scores
    found = metrics.best_threshold(labels, scores, 0.01, rule)
    assert found == brute_force(labels, scores, 100, rule == ">=")
    assert metrics.accuracy_at(labels, scores, found[0], rule) == found[1]


def test_lowest_threshold_wins_ties() -> None:
    assert metrics.best_threshold([True, False], [0.8, 0.2]) == (0.201, 1.0)
    assert metrics.best_threshold([True, True], [0.8, 0.2]) == (0.0, 1.0)
    # No threshold above 1 is tried.
    assert metrics.best_threshold([False, False], [1.0, 1.0]) == (0.0, 0.0)
    assert metrics.best_threshold([False, False], [1.0, 1.0], entailment_if=">") == (1.0, 1.0)


def test_shares_and_ties() -> None:
    assert metrics.share_right([2, 1, 1, 0], [1, 1, 2, 0]) == 0.25
    assert metrics.share_right([2, 1, 1, 0], [1, 1, 2, 0], ties=0.5) == 0.5
    assert np.isnan(metrics.share_right([], []))


@pytest.mark.parametrize("function", [metrics.pr_auc, metrics.average_precision])
def test_bad_input_is_refused(function: object) -> None:
    for labels, scores, said in (
        ([True, True], [0.1, 0.2], "^labels hold one class only: a precision-recall curve needs both$"),
        ([False, False], [0.1, 0.2], "one class"),
        ([True, False], [0.1], r"^labels \(2,\) and scores \(1,\) must be two vectors of one length$"),
        ([[True, False]], [[0.1, 0.2]], r"^labels \(1, 2\) and scores \(1, 2\) must be two vectors of one length$"),
        ([True, False], [0.1, float("nan")], "^1 of 2 scores are not finite$"),
    ):
        with pytest.raises(ValueError, match=said):
            function(labels, scores)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"^no scores to sweep a threshold over$"):
        metrics.best_threshold([], [])


@pytest.mark.parametrize("seed", range(20))
def test_the_curve_and_its_areas_are_those_of_sklearn(seed: int) -> None:
    r = np.random.default_rng(seed)
    n = int(r.integers(2, 400))
    labels = r.random(n) < r.uniform(0.1, 0.9)
    labels[:2] = [True, False]
    # With ties, without any, and all the same.
    scores = (r.integers(0, int(r.integers(2, 200)), n) / 7, r.normal(size=n), np.full(n, 0.5))[seed % 3]
    for ours, theirs in zip(metrics.pr_curve(labels, scores), precision_recall_curve(labels, scores), strict=True):
        assert np.array_equal(ours, theirs)
    precision, recall, _ = precision_recall_curve(labels, scores)
    assert metrics.pr_auc(labels, scores) == auc(recall, precision)
    assert metrics.average_precision(labels, scores) == average_precision_score(labels, scores)


@pytest.mark.slow
def test_a_training_worker_imports_neither_scipys_statistics_nor_sklearn() -> None:
    code = "import sys, pipeline.training.trainer; sys.exit(', '.join({'sklearn', 'scipy.stats'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_directed_turns_every_one_way_entailment_round() -> None:
    # Entailments: one-way, two-way, reverse unknown. Others: neutral, contradiction whose reverse is unknown.
    truth, scores, pairs = metrics.directed(
        [0, 0, 0, 1, 2], [1, 0, -1, 0, -1], [0.9, 0.8, 0.7, 0.6, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5]
    )
    assert truth.tolist() == [True, True, False, False, False, False]
    assert scores.tolist() == [0.9, 0.7, 0.6, 0.5, 0.1, 0.3]
    assert pairs.tolist() == [0, 2, 3, 4, 0, 2]
