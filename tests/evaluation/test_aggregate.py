"""Means over seeds, if a seed lacks a metric."""

from __future__ import annotations

import pytest

from pipeline.evaluation.aggregate import mean_and_sd


@pytest.mark.parametrize("missing", [{}, {"spearman": float("nan")}, {"spearman": float("inf")}])
@pytest.mark.parametrize("first", [False, True])
def test_a_metric_that_one_seed_lacks_has_no_mean(missing: dict[str, float], first: bool) -> None:
    seeds = [{"dev": {"pr_auc": 60.0, **missing}}, {"dev": {"pr_auc": 62.0, "spearman": 1.0}}]
    found = mean_and_sd(dict(zip("ab", seeds if first else seeds[::-1], strict=True)))
    assert set(found["dev"]) == {"pr_auc"}
    assert found["dev"]["pr_auc"]["mean"] == 61.0
