"""The main tables of docs/results.md are computed again from their figures in docs/figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from scipy.stats import t

from pipeline.families.pairs.real_probe import COLUMNS
from tests.conftest import ROOT

FIGURES = sorted(path.stem for path in (ROOT / "docs/figures").glob("*.json"))
assert FIGURES
SETS = {"recommended": ("snli_test", "sick_test", "mnli_dev_matched"), "quick": ("generated_test", "everyday_test")}
# Of SICK's entailment pairs it is known which hold one way only.
WAY = {"sick_test": "one_way_"}
NEUTRAL = 'of neutral pairs, "the premise entails"'
TITLES = {"snli_test": "SNLI test", "sick_test": "SICK test", "mnli_dev_matched": "MultiNLI matched"}
PHENOMENA = ("role swap", "antonym", "hypernym", "number", "negation", "all")

Table = tuple[str, list[list[str]]]
"""First cell of the header; the rows below it."""


@cache
def figures(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"docs/figures/{name}.json").read_text(encoding="utf-8"))


def values(name: str, recipe: str, set_name: str, key: str) -> list[float]:
    return [sets[set_name][key] for _, sets in sorted(figures(name)["per_seed"][recipe].items())]


def cell(numbers: list[float]) -> str:
    """Mean ± standard deviation (n − 1); one number where every seed has the same."""
    mean = f"{statistics.mean(numbers):.1f}"
    return mean if len(set(numbers)) == 1 else f"{mean} ± {statistics.stdev(numbers):.1f}"


def gain(ours: list[float], theirs: list[float]) -> str:
    """Mean difference over the seeds and its 95 % interval (Student's t, paired by seed)."""
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, n = statistics.mean(gains), len(gains)
    half = float(t.ppf(0.975, n - 1)) * statistics.stdev(gains) / n**0.5
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]".replace("-", "−")


def row(label: str, cells: list[str]) -> list[str]:
    return [label, *cells]


def means(name: str, label: str, recipe: str, keys: list[str]) -> list[str]:
    return row(label, [cell(values(name, recipe, set_name, key)) for set_name in SETS[name] for key in keys])


def recommended() -> Iterator[Table]:
    name, ours = "recommended", "recommended"
    only = figures(name)["hypothesis_only"]
    first_rows = {
        "pr_auc": row("hypothesis-only", [text for set_name in SETS[name] for text in (f"{only[set_name]['pr_auc']:.1f}", "")]),
        "directed_pr_auc": means(name, "length-only", ours, ["directed_pr_auc_length_only"]),
    }
    for title, keys in (("PR-AUC", ["pr_auc", "hard.pr_auc"]), ("directed PR-AUC", ["directed_pr_auc"])):
        rows = [first_rows[keys[0]], means(name, "`simcse`", "simcse", keys)]
        for label, prefix in (("by similarity alone", "similarity."), ("`recommended`", "")):
            rows.append(means(name, label, ours, [f"{prefix}{key}" for key in keys]))
            gains = [
                gain(values(name, ours, set_name, f"{prefix}{key}"), values(name, "simcse", set_name, key))
                for set_name in SETS[name]
                for key in keys
            ]
            if not prefix:
                rows.append(row("gain of `recommended`", gains))
        yield title, rows
    measures = (("length-only", "length_only"), ("by similarity alone", "sim"), ("`recommended`", "score"))
    yield (
        "direction",
        [
            row(
                label,
                [
                    cell(values(name, ours, set_name, f"direction.{WAY.get(set_name, '')}{subset}{measure}"))
                    for set_name in SETS[name]
                    for subset in ("", "not_longer_")
                ],
            )
            for label, measure in measures
        ],
    )
    yield NEUTRAL, [means(name, label, ours, [f"direction.neutral_{measure}"]) for label, measure in measures]
    yield "three-way accuracy", [means(name, "`recommended`", ours, ["three_way"])]
    for set_name in SETS[name]:
        yield f"{TITLES[set_name]}, called", confusion(name, ours, set_name)
    yield "", list(probe_rows(name, ("simcse", "recommended")))
    yield "changed words", changed_words(name, ("simcse", "recommended"))
    yield "everyday pairs", [everyday(name)]
    yield "dimensions", dimensions(name)


def confusion(name: str, recipe: str, set_name: str) -> list[list[str]]:
    """What the pairs of each label are called."""
    labels = ("entailment", "neutral", "contradiction")
    return [
        row(gold, [cell(values(name, recipe, set_name, f"confusion.{gold}.{called}")) for called in labels]) for gold in labels
    ]


def by_seed(name: str, *keys: str) -> list[Any]:
    """The values of the seeds below these keys of the figures, in order."""
    found: Any = figures(name)
    for key in keys:
        found = found[key]
    return [found[seed] for seed in sorted(found)]


def changed_words(name: str, recipes: tuple[str, ...]) -> list[list[str]]:
    found = [(recipe, by_seed(name, "real_probe", recipe)) for recipe in recipes]
    return [
        row(f"`{recipe}`", [cell([seed[kind] for seed in seeds]) if kind in seeds[0] else "" for kind in COLUMNS])
        for recipe, seeds in found
    ]


def everyday(name: str) -> list[str]:
    counts = ("right", "contradictions called entailment", "directions right", "three-way right")
    return row(f"`{name}`", [", ".join(str(seed[count]) for seed in by_seed(name, "everyday")) for count in counts])


def dimensions(name: str) -> list[list[str]]:
    seeds = by_seed(name, "dims")
    return [
        row(
            dims,
            [cell([seed[dims][set_name][by] for seed in seeds]) for set_name in SETS[name] for by in ("similarity", "score")],
        )
        for dims in seeds[0]
    ]


def quick() -> Iterator[Table]:
    name = recipe = "quick"
    direction = ["direction.{}", "direction.not_longer_{}", "direction.neutral_{}"]
    for set_name in SETS[name]:

        def cells(keys: list[str], set_name: str = set_name) -> list[str]:
            return [cell(values(name, recipe, set_name, key)) for key in keys]

        kind = set_name.removesuffix("_test")
        ours = ["pr_auc", "directed_pr_auc", *(key.format("score") for key in direction), "three_way"]
        alone = ["similarity.pr_auc", "similarity.directed_pr_auc", *(key.format("sim") for key in direction)]
        lengths = ["directed_pr_auc_length_only", *(key.format("length_only") for key in direction)]
        only = f"{figures(name)['hypothesis_only'][set_name]['pr_auc']:.1f}"
        yield (
            f"{kind} test",
            [
                row("with the relation head", cells(ours)),
                row("by similarity alone", [*cells(alone), ""]),
                row("length-only", ["", *cells(lengths), ""]),
                row("hypothesis-only", [only, *[""] * 5]),
            ],
        )
        yield f"{kind} test, called", confusion(name, recipe, set_name)
    yield "", list(probe_rows(name, ("quick by similarity alone", "quick")))


def probe_rows(name: str, recipes: tuple[str, ...]) -> Iterator[list[str]]:
    for recipe in recipes:
        seeds = [shares for _, shares in sorted(figures(name)["probe"][recipe].items())]
        yield row(f"`{recipe}`" if " " not in recipe else recipe, [cell([seed[kind] for seed in seeds]) for kind in PHENOMENA])


def text_of(*pages: str) -> str:
    return "".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in pages)


def tables_of(page: str, section: str) -> Iterator[Table]:
    """First cell of the header, and the rows below, of each table in a section of a page."""
    (part,) = [part for part in text_of(page).replace("**", "").split("\n## ") if part.startswith(section)]
    for block in part.split("\n\n"):
        lines = [
            [text.strip() for text in line.removeprefix("|").removesuffix("|").split("|")]
            for line in block.splitlines()
            if line.startswith("|")
        ]
        if lines:
            yield lines[0][0], lines[2:]


@pytest.mark.parametrize(("section", "computed"), [("Preset `recommended`", recommended), ("Preset `quick`", quick)])
def test_the_tables_are_what_the_figures_give(section: str, computed: Callable[[], Iterator[Table]]) -> None:
    shown = list(tables_of("results", section))
    for title, rows in computed():
        assert [found for head, found in shown if head == title] == [rows], title


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_names_the_commit_and_the_command_of_the_figures(name: str) -> None:
    page = text_of("results", "diary")
    run = figures(name)
    assert run["commit"][:7] in page
    assert f"`{run['command']}`" in page
    assert f"(figures/{name}.json)" in page


def test_the_recommended_recipe_keeps_what_was_reached() -> None:
    """Means over the seeds, in percent; a recipe that falls below them must say why."""
    least = {
        ("snli_test", "pr_auc"): 90, ("sick_test", "pr_auc"): 83, ("mnli_dev_matched", "pr_auc"): 82.5,
        ("snli_test", "directed_pr_auc"): 85, ("sick_test", "directed_pr_auc"): 70, ("mnli_dev_matched", "directed_pr_auc"): 74,
        ("snli_test", "hard.pr_auc"): 74, ("sick_test", "direction.one_way_score"): 91,
        ("snli_test", "three_way"): 79, ("mnli_dev_matched", "three_way"): 71,
    }  # fmt: skip
    for (set_name, key), value in least.items():
        assert statistics.mean(values("recommended", "recommended", set_name, key)) >= value, (set_name, key)
    for set_name in SETS["recommended"]:
        for key in ("pr_auc", "hard.pr_auc"):
            ours, theirs = (values("recommended", recipe, set_name, key) for recipe in ("recommended", "simcse"))
            assert min(ours) > max(theirs), (set_name, key)
    for seed in by_seed("recommended", "everyday"):
        assert seed["right"] >= 48 and seed["contradictions called entailment"] <= 2
    for seed in by_seed("recommended", "real_probe", "recommended"):
        assert seed["all"] >= 80
        assert all(seed[kind] >= 65 for kind in COLUMNS if kind != "role swap")
    for seed in by_seed("recommended", "dims"):
        for whole, short in zip(seed["384"].values(), seed["128"].values(), strict=True):
            assert all(short[by] >= 0.98 * whole[by] for by in whole)
