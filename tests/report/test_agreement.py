"""The same numbers everywhere: both pages, DVC's metrics; and those that the scores of single pairs give, recomputed here."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from pipeline.config.params import Params
from pipeline.report.results import trial_name
from tests.report.conftest import results_of
from tests.report.reading import HtmlPage, Rows
from tests.report.results import HYPOTHESIS_ONLY, SETS, hard_of, recipe_of

FOLDERS = {
    "main recipe": "results/evaluate/scores/main recipe",
    "ent": "results/experiments/scores/ent",
    "simcse": "results/experiments/scores/simcse",
}
Scores = dict[str, NDArray[Any]]


def column(rows: Rows, heading: str) -> dict[str, str]:
    """Name of the row → cell under the heading."""
    at = rows[0].index(heading)
    return {row[0]: row[at] for row in rows[1:]}


def shown(values: list[float], places: int = 1) -> str:
    """Mean ± sd with n − 1, worked out here; four places first, which is what DVC's metrics have."""
    if not values:
        return "–"
    mean = sum(values) / len(values)
    sd = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{round(mean, 4):.{places}f} ± {round(sd, 4):.{places}f}"


def scores(root: Path, recipe: str, set_name: str) -> list[Scores]:
    files = sorted((root / FOLDERS[recipe] / set_name).glob("seed-*.parquet"))
    assert len(files) == 3
    return [{name: c.to_numpy() for name, c in zip(t.column_names, t.columns, strict=True)} for t in map(pq.read_table, files)]


def area(entailed: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """Under precision against recall, by trapezoids from (0, 1), in percent."""
    points = [(0.0, 1.0)]
    for threshold in sorted(set(score.tolist()), reverse=True):
        called = score >= threshold
        points.append(((called & entailed).sum() / entailed.sum(), (called & entailed).sum() / called.sum()))
    return 100 * sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))


def swept(entailed: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """The lowest of the thresholds 0, 0.001 … 1 with the highest accuracy."""
    accuracy = [np.mean((score >= k / 1000) == entailed) for k in range(1001)]
    return accuracy.index(max(accuracy)) / 1000


def thresholds(root: Path, recipe: str) -> list[float]:
    return [swept(seed["label"] == 0, seed["score"]) for seed in scores(root, recipe, "dev")]


def directed(seed: Scores, kept: Any, *, length: bool = False) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Entailments one way, the other labels, and the entailments turned round: whether each is right, and its score."""
    one_way, rest = (seed["label"] == 0) & (seed["reverse_label"] != 0) & kept, (seed["label"] != 0) & kept
    longer = seed["premise_tokens"] - seed["hypothesis_tokens"]
    there, back = (longer, -longer) if length else (seed["score"], seed["reverse_score"])
    right = np.repeat([True, False], [one_way.sum(), rest.sum() + one_way.sum()])
    return right, np.concatenate([there[one_way], there[rest], back[one_way]])


def subsets(seed: Scores, hard: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Heading of Table 2 → its rows, without the subsets that have none."""
    entailed, longer = seed["label"] == 0, seed["premise_tokens"] > seed["hypothesis_tokens"]
    one_way, two_way = entailed & (seed["reverse_label"] > 0), entailed & (seed["reverse_label"] == 0)
    found = {"all": entailed, "premise not longer": entailed & ~longer, "one-way": one_way}
    found |= {"one-way, premise not longer": one_way & ~longer, "two-way": two_way}
    found |= {"hard pairs": entailed & hard & ~two_way, "neutral pairs": seed["label"] == 1}
    return {f"{name} ({rows.sum():,})": rows for name, rows in found.items() if rows.any()}


def test_report_md_has_the_tables_of_the_page_cell_by_cell(page: HtmlPage, tables: list[Rows]) -> None:
    folded = {"trials", "seeds", "data-files", "parameters", "versions"}
    assert folded < set(page.tables)
    of_html = {name: rows for name, rows in page.tables.items() if name not in folded}
    assert len(of_html) == len(tables) > 15
    for (name, rows), of_markdown in zip(of_html.items(), tables, strict=True):
        # Markdown has a line for a row, so line breaks and runs of spaces are one space there.
        assert [[" ".join(cell.split()) for cell in row] for row in rows] == of_markdown, name


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_tables_1_and_2_are_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    root = results[0]
    for k, (name, pairs) in enumerate(SETS.items()):
        expected: dict[tuple[str, str], list[float]] = defaultdict(list)
        hard = hard_of(name, pairs)
        for seed, at in zip(scores(root, recipe, name), thresholds(root, recipe), strict=True):
            entailed, score = seed["label"] == 0, seed["score"]
            values = {
                ("table-1", f"{name}: PR-AUC"): area(entailed, score),
                ("table-1", f"{name}: hard pairs"): area(entailed[hard], score[hard]),
                (f"table-1-{k}", "accuracy"): 100 * np.mean((score >= at) == entailed),
                (f"table-1-{k}", "threshold"): at,
                (f"table-1-{k}", "average precision"): 100 * average_precision_score(entailed, score),
                (f"table-1-{k}", "directed PR-AUC"): area(*directed(seed, True)),
                (f"table-1-{k}", "directed average precision"): 100 * average_precision_score(*directed(seed, True)),
                (f"table-1-{k}", "hard pairs: directed PR-AUC"): area(*directed(seed, hard)),
            }
            for heading, rows in subsets(seed, hard).items():
                for by, (a, b) in {"sim": ("sim_hp", "sim_ph"), "var": ("premise_log_var", "hypothesis_log_var")}.items():
                    of = expected[f"table-2-{k}", f"{heading}: {by}"]
                    of += [100 * float(np.mean((seed[a] > seed[b])[rows]))] if a in seed else []
            for key, value in values.items():
                expected[key].append(float(value))
        for (table, heading), of_seeds in expected.items():
            assert column(page.tables[table], heading)[recipe] == shown(of_seeds, 3 if heading == "threshold" else 1), heading
        for table in (f"table-1-{k}", f"table-2-{k}"):
            assert set(page.tables[table][0][1:]) == {heading for of, heading in expected if of == table}


def test_the_baselines_are_what_the_data_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    for k, (name, pairs) in enumerate(SETS.items()):
        seed, hard = scores(results[0], "ent", name)[0], hard_of(name, pairs)
        entailed = 100 * np.mean(seed["label"] == 0)
        areas, hard_areas = (column(page.tables["table-1"], f"{name}: {heading}") for heading in ("PR-AUC", "hard pairs"))
        assert (areas["chance"], areas["hypothesis-only"]) == (f"{entailed:.1f}", f"{HYPOTHESIS_ONLY['pr_auc'] - 0.01:.1f}")
        assert (hard_areas["chance"], hard_areas["hypothesis-only"]) == (f"{100 * np.mean(seed['label'][hard] == 0):.1f}", "–")
        accuracy = column(page.tables[f"table-1-{k}"], "accuracy")
        assert (accuracy["majority"], accuracy["hypothesis-only"]) == (f"{100 - entailed:.1f}", "63.5")
        assert column(page.tables[f"table-1-{k}"], "average precision")["chance"] == f"{entailed:.1f}"
        by_length = 100 * average_precision_score(*directed(seed, True, length=True))
        assert column(page.tables[f"table-1-{k}"], "directed average precision")["length-only"] == f"{by_length:.1f}"
        more = seed["premise_tokens"] - seed["hypothesis_tokens"]
        for heading, rows in subsets(seed, hard).items():
            cells = column(page.tables[f"table-2-{k}"], f"{heading}: sim")
            assert cells["length-only"] == f"{round(100 * np.mean(((more > 0) + 0.5 * (more == 0))[rows]), 4):.1f}"
            assert cells["chance"] == "50.0"
    # The paper's figures are those of its own sets, and its directions those of all entailment pairs; SimCSE has none.
    rows = {row[0]: row[1:] for row in page.tables["table-1"]}
    assert rows["the paper's ent+con+rev"] == ["–", "–", "78.9", "–", "69.3", "–"]
    rows = {row[0]: row[1:3] for row in page.tables["table-2-2"]}
    assert rows["the paper's ent"] == ["81.7", "81.2"]
    assert rows["the paper's ent+con+rev"] == ["97.1", "97.2"]
    assert "the paper's simcse" not in rows


def test_the_opening_figures_show_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    def points(figure: str, legend: str) -> dict[str, tuple[float, float]]:
        """Name of a row → mean, sd."""
        data, layout = page.figures[figure]
        (trace,) = (trace for trace in data if trace["name"] == legend)
        names = [layout["yaxis"]["ticktext"][round(y)] for y in trace["y"]]
        return dict(zip(names, zip(trace["x"], trace["error_x"]["array"], strict=True), strict=True))

    for name, legend in (("sick_test", "sick_test, one-way"), ("snli_test", "snli_test")):
        entailment, direction = points("headline-0", name), points("headline-1", legend)
        for recipe in FOLDERS:
            seeds = scores(results[0], recipe, name)
            areas = [area(seed["label"] == 0, seed["score"]) for seed in seeds]
            assert entailment[recipe] == pytest.approx((np.mean(areas), np.std(areas, ddof=1)), abs=1e-3)
            if recipe == "simcse":
                assert recipe not in direction
                continue
            # Of SICK, whose reverse labels are known, the pairs that hold one way.
            one_way = [(s["label"] == 0) & (s["reverse_label"] != 0) for s in seeds]
            right = [100 * np.mean((s["sim_hp"] > s["sim_ph"])[rows]) for s, rows in zip(seeds, one_way, strict=True)]
            assert direction[recipe] == pytest.approx((np.mean(right), np.std(right, ddof=1)), abs=1e-3)
        assert entailment["hypothesis-only"][0] == HYPOTHESIS_ONLY["pr_auc"]
        assert {"length-only", "chance"} < set(direction)
    # The paper's directions on SICK are not those of one-way pairs.
    assert "the paper's best" not in points("headline-1", "sick_test, one-way")
    assert points("headline-1", "snli_test")["the paper's best"][0] == 97.09


def test_table_4_is_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    def ranks(values: NDArray[np.float64]) -> NDArray[np.int_]:
        return np.argsort(np.argsort(values))

    for recipe, (heading, name) in itertools.product(
        FOLDERS, (("cosine of means", "cosine"), ("symmetrised similarity", "similarity"))
    ):
        seeds = [seed for seed in scores(results[0], recipe, "stsb_test") if name in seed]
        values = [100 * np.corrcoef(ranks(seed[name]), ranks(seed["score"]))[0, 1] for seed in seeds]
        assert column(page.tables["table-4"], f"stsb_test: {heading}")[recipe] == shown(values)


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_tables_5_and_6_are_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    seeds = scores(results[0], recipe, "sick_test")

    def cell(table: str, heading: str) -> str:
        rows = page.tables[table]
        (found,) = (row for row in rows if row[:2] == ["sick_test", recipe])
        return found[rows[0].index(heading)]

    for code, label in enumerate(("entailment", "neutral", "contradiction")):
        at = zip(seeds, thresholds(results[0], recipe), strict=True)
        called = [100 * float(np.mean(s["score"][s["label"] == code] >= threshold)) for s, threshold in at]
        assert cell("table-6", f"{label} called entailment") == shown(called)
    brier = [100 * float(np.mean((np.clip(s["score"], 0, 1) - (s["label"] == 0)) ** 2)) for s in seeds]
    assert cell("table-6", "Brier score") == shown(brier)
    beyond = [100 * float(np.mean((seed["score"] < 0) | (seed["score"] > 1))) for seed in seeds]
    assert cell("table-6", "scores beyond [0, 1]") == shown(beyond)
    assert (max(beyond) > 0) == (recipe == "simcse")
    agrees: list[float] = []
    for seed in seeds if recipe != "simcse" else []:
        longer = (seed["premise_tokens"] - seed["hypothesis_tokens"])[seed["label"] == 0]
        wider = (seed["premise_log_var"] - seed["hypothesis_log_var"])[seed["label"] == 0]
        agrees.append(100 * float(np.mean((wider > 0)[longer != 0] == (longer > 0)[longer != 0])))
    assert cell("table-5", "agrees with length-only") == shown(agrees)


def test_the_marked_threshold_is_where_the_scores_put_it(results: tuple[Path, Params], page: HtmlPage) -> None:
    points: list[tuple[float, float]] = []
    for seed, at in zip(scores(results[0], "ent", "sick_test"), thresholds(results[0], "ent"), strict=True):
        called, entailed = seed["score"] >= at, seed["label"] == 0
        points.append(((called & entailed).sum() / entailed.sum(), (called & entailed).sum() / called.sum()))
    traces, _ = page.figures["precision-recall-0"]
    (marked,) = (trace for trace in traces if trace["mode"] == "markers" and trace["name"] == "ent")
    assert (marked["x"] + marked["y"]) == pytest.approx(np.mean(points, axis=0), abs=1e-4)


def test_dvc_s_metrics_agree_to_the_digit(results: tuple[Path, Params], page: HtmlPage) -> None:
    main = json.loads((results[0] / "results/evaluate/metrics.json").read_text(encoding="utf-8"))
    variants = json.loads((results[0] / "results/experiments/metrics.json").read_text(encoding="utf-8"))
    headings = {"pr_auc": "PR-AUC", "hard.pr_auc": "hard pairs", "spearman_cosine": "cosine of means"}
    headings |= {"accuracy": "accuracy", "directed_pr_auc": "directed PR-AUC"}
    compared = 0
    for recipe, sets in {"main recipe": main, **variants}.items():
        for (name, metrics), (metric, heading) in itertools.product(sets.items(), headings.items()):
            if metric in metrics:
                tables = [rows for rows in page.tables.values() if f"{name}: {heading}" in rows[0] and rows[0][0] == "recipe"]
                k = list(SETS).index(name) if name in SETS else 0
                tables += [rows] if heading in (rows := page.tables[f"table-1-{k}"])[0] else []
                for rows in tables:
                    cell = column(rows, f"{name}: {heading}" if f"{name}: {heading}" in rows[0] else heading)[recipe]
                    assert cell.partition(" ± ")[0] == f"{metrics[metric]:.1f}", (recipe, name, metric)
                    compared += 1
    assert compared > 25


def test_trials_are_named_as_the_pipeline_names_them(results: tuple[Path, Params]) -> None:
    trial = recipe_of(results[1], "ent+con").trial(3e-5, 64, 7)
    assert trial_name("ent+con", 3e-5, 64, 7) == trial.name
    for recipe in results_of(*results).recipes:
        assert recipe.failure or all(len(points) == 10 for points in recipe.learning["loss"].values())
