"""The first lines of the report: how good the champion is, against what, where it fails, and what to try next."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.params import Params
from pipeline.data.schema import LABELS
from pipeline.families.pairs.report import champion
from pipeline.report.page import Table
from pipeline.report.results import Results, read_results
from pipeline.report.tables import Headline, Measure
from pipeline.report.writing import HTML, _next_steps, _verdict, write_report
from tests.report.reading import HtmlPage, read_html

REGISTERED = {"name": "m", "version": 3, "alias": "champion", "champion_version": 3}


def recipe(name: str, **values: float) -> Any:
    per_seed = {1: {set_name: {"pr_auc": value} for set_name, value in values.items()}}
    return SimpleNamespace(name=name, mean=lambda set_name, metric: values.get(set_name), per_seed=per_seed)


def test_the_verdict_names_what_the_champion_beats_on_every_set_and_what_not() -> None:
    """The paper's figures are not among the others; a baseline without any figure was not compared."""
    main = recipe("main recipe", a=80.0, b=50.0)
    recipes = (main, recipe("other", a=70.0, b=60.0), recipe("failed"))
    results: Any = SimpleNamespace(main=main, recipes=recipes, registered=REGISTERED)
    measures = [Measure(name, "pr_auc", name) for name in "abc"]
    baselines: dict[str, dict[tuple[str, str], float | None]] = {
        "always-no": {("a", "pr_auc"): 75.0, ("b", "pr_auc"): None},
        "length-only": {("a", "pr_auc"): 20.0},
        "absent": {},
        "the paper's best": {("a", "pr_auc"): 99.0},
    }
    assert _verdict(results, Headline("PR-AUC", measures, baselines), 1).replace("\xa0", " ") == (
        "m version 3, the champion, is better than always-no and length-only, not better than other on b: PR-AUC 80.0 % on a "
        "(next: always-no, 75.0 %), 50.0 % on b (next: other, 60.0 %); absent was not trained (experiments.variants)."
    )
    assert _verdict(results, Headline("PR-AUC", measures[2:], baselines), 1) == ""
    results.registered = REGISTERED | {"alias": None, "champion_version": 2}
    verdict = _verdict(results, Headline("PR-AUC", measures, baselines), 1)
    assert verdict.startswith("m version 3, neither champion nor challenger (the champion is version 2), is better")


@pytest.mark.parametrize(
    ("best_step", "rate", "mode", "cut", "found"),
    [
        (90, 2e-5, "all", 0, []),
        (100, 2e-5, "all", 0, ["train longer (train.epochs)"]),
        (90, 3e-5, "all", 0, ["the grid chose 3e-05, the end of tune.learning_rates"]),
        (
            90,
            2e-5,
            "with-contradiction",
            0,
            ["1,500 of 2,000 triplets lack a contradiction and are not used (train.triplets: all)"],
        ),
        (90, 2e-5, "all", 30, ["30 of 1,200 sentences (2.5\xa0%) are cut, since they are longer than model.max_length: 64"]),
    ],
)
def test_what_to_try_next_follows_from_the_results(best_step: int, rate: float, mode: str, cut: int, found: list[str]) -> None:
    seeds = [SimpleNamespace(best_step=step, total_steps=100) for step in (100, best_step)]
    main = SimpleNamespace(seeds=seeds, choice=SimpleNamespace(learning_rate=rate, batch_size=32))
    tune = {"learning_rates": (1e-5, 2e-5, 3e-5), "batch_sizes": (32,)}
    params = {"tune": tune, "train": {"triplets": mode}, "model": {"max_length": 64}}
    profile = {"train": {"counts": {"triplets": 2000, "triplets_with_contradiction": 500}}}
    results: Any = SimpleNamespace(main=main, params=params, profile=profile, cut=(cut, 1200))
    steps = _next_steps(results)
    assert len(steps) == len(found) and all(words in step for words, step in zip(found, steps, strict=True))


def test_the_report_opens_with_them_in_this_order(full: tuple[str, str]) -> None:
    opening = ("Verdict:", "dev PR-AUC 61.00", "Rows: gold label", "sick_test: accuracy", "Its ten worst pairs", "Try next:")
    for text in (read_html(full[0]).text, full[1].replace("\\", "").replace("**", "")):
        places = [text.index(words) for words in (*opening, "are cut", "Headlines", "What was registered, and why")]
        assert places == sorted(places)
    # A phone sees the verdict first, not the contents.
    assert full[0].index('class="lines verdict"') < full[0].index("<nav")


def test_a_development_figure_has_one_name(page: HtmlPage, full: tuple[str, str]) -> None:
    assert page.tables["recipes-table"][0][5] == "dev PR-AUC"
    assert "development PR-AUC" not in page.text + full[1]
    assert "Best selection PR-AUC in percent" in page.text


def champion_blocks(root: Path, params: Params) -> tuple[Results, list[Table], int]:
    """The report's confusion tables of the best seed on dev."""
    results = read_results(params, {}, root)
    seed = max(results.main.per_seed, key=lambda seed: results.main.per_seed[seed]["dev"]["pr_auc"])
    (tables,) = (block for block in champion(results, seed) if isinstance(block, tuple))
    return results, [one for one in tables if isinstance(one, Table)], seed


@pytest.mark.parametrize("kinds", ["three labels", "two labels", "no relation head"])
def test_the_confusion_is_that_of_a_loop(results: tuple[Path, Params], tmp_path: Path, kinds: str) -> None:
    root = shutil.copytree(results[0], tmp_path / "copy", ignore=shutil.ignore_patterns("report-*"))
    random = np.random.default_rng(1)
    for file in (root / "results/evaluate/scores/main recipe/snli_test").iterdir():
        table = pq.read_table(file)
        if kinds == "two labels":
            label = np.minimum(table["label"].to_numpy(), 1)
            table = table.set_column(0, "label", pa.array(label, pa.int8()))
        if kinds != "no relation head":
            table = table.append_column("relation", pa.array(random.integers(0, 3, table.num_rows), pa.int8()))
        pq.write_table(table, file)
    read, tables, seed = champion_blocks(root, results[1])
    shown = next(table for table in tables if table.title.startswith("snli_test"))
    threshold = read.main.per_seed[seed]["snli_test"]["threshold"]
    counts = Counter[tuple[str, str]]()
    for row in pq.read_table(root / f"results/evaluate/scores/main recipe/snli_test/seed-{seed}.parquet").to_pylist():
        two = "entailment" if row["score"] >= threshold else "not entailment"
        counts[LABELS[row["label"]], two if kinds == "no relation head" else LABELS[row["relation"]]] += 1
    names = list(shown.header[1:])
    assert names == (["entailment", "not entailment"] if kinds == "no relation head" else [*LABELS])
    assert len(shown.rows) == (2 if kinds == "two labels" else 3)
    for row in shown.rows:
        gold, _, pairs = row.cells[0].text.partition(" ")
        total = sum(counts[gold, name] for name in names)
        assert pairs == f"({total})"
        for name, cell in zip(names, row.cells[1:], strict=True):
            n = counts[gold, name]
            assert cell.text == f"{n} ({100 * n / total:.1f}\xa0%)"
            assert cell.best == (name == gold or (name == "not entailment" and gold != "entailment"))


def test_the_ten_worst_pairs_are_the_furthest_from_the_threshold(results: tuple[Path, Params], page: HtmlPage) -> None:
    read, _, seed = champion_blocks(*results)
    distances: dict[bool, list[float]] = {False: [], True: []}
    for name in ("sick_test", "snli_test"):
        threshold = read.main.per_seed[seed][name]["threshold"]
        table = pq.read_table(results[0] / f"results/evaluate/scores/main recipe/{name}/seed-{seed}.parquet")
        for label, score in zip(table["label"].to_pylist(), table["score"].to_pylist(), strict=True):
            if (label == 0) != (score >= threshold):
                distances[label == 0].append(round(abs(score - threshold), 4))
    rows = page.tables["worst"][1:]
    assert [row[0].endswith("missed") for row in rows] == [False] * 5 + [True] * 5
    for missed in (False, True):
        own = [row for row in rows if row[0].endswith("missed") == missed]
        thresholds = [read.main.per_seed[seed][row[-1].split(",")[0]]["threshold"] for row in own]
        found = [abs(float(row[3]) / 100 - threshold) for row, threshold in zip(own, thresholds, strict=True)]
        assert found == pytest.approx(sorted(distances[missed])[:-6:-1], abs=1e-3)


@pytest.mark.parametrize(
    ("metric", "sets", "profile", "verdict"),
    [
        (
            "next_sentence",
            "dev_text",
            "text",
            "is better than chance: Next sentence among 64 40.0 % on dev_text (next: chance, 1.6 %)",
        ),
        ("operator_mrr", "dev_operations", "operations", "is better than copy: Operators that rank the target first 40.0 % on"),
    ],
)
def test_a_family_without_labels_has_a_verdict_and_no_confusion(
    results: tuple[Path, Params], tmp_path: Path, metric: str, sets: str, profile: str, verdict: str
) -> None:
    read = read_results(results[1], {"model": {"max_length": 64}}, results[0])
    values = {"next_sentence": 40.0, "operator_mrr": 50.0, "operator_recall": 40.0, "copy_recall": 30.0}
    main = read.main.model_copy(
        update={
            "summary": {sets: {name: {"mean": value} for name, value in values.items()}},
            "per_seed": {1: {sets: values}},
            "precision_recall": [],
            "trials": [],
        }
    )
    registered = dict(read.registered) | {"metric": metric, "decision": None}
    alone = replace(read, recipes=(main,), profile={profile: {}, "tasks": {}}, registered=registered)
    write_report(alone, tmp_path)
    page = read_html((tmp_path / HTML).read_text(encoding="utf-8"))
    assert verdict in page.text.replace("\xa0", " ")
    assert not [name for name in page.tables if name.startswith(("confusion", "worst"))]
    assert "PR-AUC" not in page.text and "worst pairs" not in page.text
