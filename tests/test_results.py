"""The tables of docs/results.md that have their figures in docs/figures are computed again from these."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from conftest import ROOT
from scipy.stats import t

FIGURES = sorted(path.stem for path in (ROOT / "docs/figures").glob("*.json"))
assert FIGURES
SETS = {"recommended": ("snli_test", "sick_test", "mnli_dev_matched"), "quick": ("generated_test",)}
# Of SICK's entailment pairs it is known which hold one way only.
WAY = {"sick_test": "one_way_"}
PHENOMENA = ("role swap", "antonym", "hypernym", "number", "negation", "all")


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


def row(label: str, cells: list[str]) -> str:
    return f"| {label} | {' | '.join(cells)} |"


def table(name: str, label: str, recipe: str, keys: list[str]) -> str:
    return row(label, [cell(values(name, recipe, set_name, key)) for set_name in SETS[name] for key in keys])


def recommended() -> Iterator[str]:
    name, ours = "recommended", "recommended"
    only = figures(name)["hypothesis_only"]
    yield row("hypothesis-only", [text for set_name in SETS[name] for text in (f"{only[set_name]['pr_auc']:.1f}", "")])
    yield table(name, "length-only", ours, ["directed_pr_auc_length_only"])
    for keys in (["pr_auc", "hard.pr_auc"], ["directed_pr_auc"]):
        yield table(name, "`simcse`", "simcse", keys)
        for label, prefix in (("by similarity alone", "similarity."), ("`recommended`", "")):
            yield table(name, label, ours, [f"{prefix}{key}" for key in keys])
            gains = [
                gain(values(name, ours, set_name, f"{prefix}{key}"), values(name, "simcse", set_name, key))
                for set_name in SETS[name]
                for key in keys
            ]
            yield row("gain by similarity alone" if prefix else "gain of `recommended`", gains)
    for label, measure in (("length-only", "length_only"), ("by similarity alone", "sim"), ("`recommended`", "score")):
        yield row(
            label,
            [
                cell(values(name, ours, set_name, f"direction.{WAY.get(set_name, '')}{subset}{measure}"))
                for set_name in SETS[name]
                for subset in ("", "not_longer_")
            ],
        )
        yield table(name, label, ours, [f"direction.neutral_{measure}"])
    yield from probe_rows(name, ("simcse", "recommended by similarity alone", "recommended"))


def quick() -> Iterator[str]:
    name = recipe = "quick"
    direction = ["direction.{}", "direction.not_longer_{}", "direction.neutral_{}"]
    yield table(
        name, "with the relation head", recipe, ["pr_auc", "directed_pr_auc", *(key.format("score") for key in direction)]
    )
    yield table(
        name,
        "by similarity alone",
        recipe,
        ["similarity.pr_auc", "similarity.directed_pr_auc", *(key.format("sim") for key in direction)],
    )
    lengths = [cell(values(name, recipe, "generated_test", key.format("length_only"))) for key in direction]
    yield row("length-only", ["", cell(values(name, recipe, "generated_test", "directed_pr_auc_length_only")), *lengths])
    yield row("hypothesis-only", [f"{figures(name)['hypothesis_only']['generated_test']['pr_auc']:.1f}", "", "", "", ""])
    yield from probe_rows(name, ("quick by similarity alone", "quick"))


def probe_rows(name: str, recipes: tuple[str, ...]) -> Iterator[str]:
    for recipe in recipes:
        seeds = [shares for _, shares in sorted(figures(name)["probe"][recipe].items())]
        yield row(f"`{recipe}`" if " " not in recipe else recipe, [cell([seed[kind] for seed in seeds]) for kind in PHENOMENA])


@pytest.mark.parametrize("name", FIGURES)
def test_every_row_of_a_table_is_what_its_figures_give(name: str) -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8").replace("**", "")
    lines = {" ".join(line.split()) for line in page.splitlines()}
    expected = [" ".join(line.split()) for line in {"recommended": recommended, "quick": quick}[name]()]
    assert len(expected) > 5
    missing = [line for line in expected if line not in lines]
    assert not missing, "docs/results.md lacks these rows:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_names_the_commit_and_the_command_of_the_figures(name: str) -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    run = figures(name)
    assert run["commit"][:7] in page
    assert f"`{run['command']}`" in page
    assert f"(figures/{name}.json)" in page
