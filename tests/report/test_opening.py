"""The first lines of the report: how good the main recipe is, against what, and what to try next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.report.tables import Headline, Measure
from pipeline.report.writing import _next_steps, _verdict


def recipe(name: str, **values: float) -> Any:
    return SimpleNamespace(name=name, mean=lambda set_name, metric: values.get(set_name))


def test_the_verdict_names_the_best_of_the_others_on_each_set() -> None:
    """Neither the paper's figures nor the same model without its head are others."""
    main = recipe("main recipe", a=80.0, b=50.0)
    results: Any = SimpleNamespace(main=main, recipes=(main, recipe("other", a=70.0, b=60.0), recipe("failed")))
    measures = [Measure(name, "pr_auc", name) for name in "abc"]
    baselines = {
        "chance": {("a", "pr_auc"): 75.0, ("b", "pr_auc"): None},
        "the paper's best": {("a", "pr_auc"): 99.0},
        "main recipe, by similarity alone": {("b", "pr_auc"): 99.0},
    }
    assert _verdict(results, Headline("PR-AUC", measures, baselines)) == (
        "PR-AUC of the main recipe: better than all it is compared with on a, 80.0 % (next: chance, 75.0 %); "
        "not better on b, 50.0 % (next: other, 60.0 %)."
    )
    assert _verdict(results, Headline("PR-AUC", measures[2:], baselines)) == ""


@pytest.mark.parametrize(
    ("best_step", "rate", "mode", "found"),
    [
        (90, 2e-5, "all", []),
        (100, 2e-5, "all", ["train longer (train.epochs)"]),
        (90, 3e-5, "all", ["the grid chose 3e-05, the end of tune.learning_rates"]),
        (90, 2e-5, "with-contradiction", ["1,500 of 2,000 triplets lack a contradiction"]),
    ],
)
def test_what_to_try_next_follows_from_the_results(best_step: int, rate: float, mode: str, found: list[str]) -> None:
    seeds = [SimpleNamespace(best_step=step, total_steps=100) for step in (100, best_step)]
    main = SimpleNamespace(seeds=seeds, choice=SimpleNamespace(learning_rate=rate, batch_size=32))
    params = {"tune": {"learning_rates": (1e-5, 2e-5, 3e-5), "batch_sizes": (32,)}, "train": {"triplets": mode}}
    profile = {"train": {"counts": {"triplets": 2000, "triplets_with_contradiction": 500}}}
    results: Any = SimpleNamespace(main=main, params=params, profile=profile)
    steps = _next_steps(results)
    assert len(steps) == len(found) and all(words in step for words, step in zip(found, steps, strict=True))


def test_the_report_opens_with_them(full: tuple[str, str]) -> None:
    for text in full:
        assert text.index("of the main recipe: ") < text.index("To try next: ") < text.index("Headlines")
