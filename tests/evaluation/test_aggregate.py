"""Means over seeds, if a seed lacks a metric; the metrics that people see first."""

from __future__ import annotations

import pytest

from pipeline.evaluation.aggregate import flat_headlines, headlines, mean_and_sd


@pytest.mark.parametrize("missing", [{}, {"spearman": float("nan")}, {"spearman": float("inf")}])
@pytest.mark.parametrize("first", [False, True])
def test_a_metric_that_one_seed_lacks_has_no_mean(missing: dict[str, float], first: bool) -> None:
    seeds = [{"dev": {"pr_auc": 60.0, **missing}}, {"dev": {"pr_auc": 62.0, "spearman": 1.0}}]
    found = mean_and_sd(dict(zip("ab", seeds if first else seeds[::-1], strict=True)))
    assert set(found["dev"]) == {"pr_auc"}
    assert found["dev"]["pr_auc"]["mean"] == 61.0


def test_headlines_are_few_and_direction_is_by_the_score_that_counts() -> None:
    gaussian = {"pr_auc": 60.0, "accuracy": 70.0, "direction.sim": 90.12341, "pairs": 6}
    with_head = {**gaussian, "three_way": 80.0, "direction.score": 95.0, "confusion.neutral.neutral": 50.0}
    expected = {"pr_auc": 60.0, "direction.sim": 90.1234}, {"pr_auc": 60.0, "three_way": 80.0, "direction.score": 95.0}
    sets = {"dev": gaussian, "a_test": with_head, "graded": {"spearman_cosine": float("nan")}}
    assert [*headlines(sets).values()][:2] == [*expected]
    assert headlines(mean_and_sd({"seed-1": {"dev": gaussian}})) == {"dev": expected[0]}
    assert flat_headlines(sets) == {
        f"{name}.{key}": value for name, of in zip(sets, expected, strict=False) for key, value in of.items()
    }
