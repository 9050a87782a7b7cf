"""The same numbers everywhere: both pages, DVC's metrics, MLflow; and those that the per-pair scores give, recomputed here."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from pipeline.config.execution import TrackingParams
from pipeline.config.params import Params
from pipeline.evaluation.aggregate import flatten
from pipeline.report.content import trial_name
from pipeline.tracking.mlflow_runs import log_metrics
from pipeline.tracking.server import open_tracker
from tests.report.conftest import content_of
from tests.report.reading import HtmlPage, Rows
from tests.report.results import SETS, hard_of, recipe_of

Numbers = dict[str, float]
FOLDERS = {
    "main recipe": "results/evaluate/scores/main recipe",
    "ent": "results/experiments/scores/ent",
    "simcse": "results/experiments/scores/simcse",
}


def column(rows: Rows, heading: str) -> dict[str, str]:
    """Name of the row → cell under the heading."""
    at = rows[0].index(heading)
    return {row[0]: row[at] for row in rows[1:]}


def shown(values: list[float], places: int = 1) -> str:
    """Mean ± sd with n − 1, worked out here; four places first, which is what DVC's metrics have."""
    mean = sum(values) / len(values)
    sd = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{round(mean, 4):.{places}f} ± {round(sd, 4):.{places}f}"


def scores(root: Path, recipe: str, set_name: str) -> list[dict[str, NDArray[Any]]]:
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


def test_both_pages_show_the_same_tables_cell_by_cell(page: HtmlPage, tables: list[Rows]) -> None:
    assert len(page.tables) == len(tables) > 20
    for (name, of_html), of_markdown in zip(page.tables.items(), tables, strict=True):
        # Markdown has a line for a row, so line breaks and runs of spaces are one space there.
        assert [[" ".join(cell.split()) for cell in row] for row in of_html] == of_markdown, name


def test_the_opening_says_and_shows_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    (points,) = (figure["data"] for figure in json.loads(page.scripts[0]) if figure["id"] == "summary-figure")
    shown_at = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in points}

    def means(recipe: str, name: str) -> tuple[float, float | None]:
        """PR-AUC, and direction by sim: of the one-way pairs of SICK, of all elsewhere."""
        areas: list[float] = []
        right: list[float] = []
        for seed in scores(results[0], recipe, name):
            entailed = seed["label"] == 0
            areas.append(area(entailed, seed["score"]))
            if "sim_hp" in seed:
                rows = entailed & (seed["reverse_label"] > 0) if name == "sick_test" else entailed
                right.append(float(100 * np.mean((seed["sim_hp"] > seed["sim_ph"])[rows])))
        return float(np.mean(areas)), float(np.mean(right)) if right else None

    for recipe in FOLDERS:
        for name in ("sick_test", "snli_test"):
            auc, direction = means(recipe, name)
            assert shown_at[recipe][f"{name}: entailment"] == pytest.approx(auc, abs=1e-4)
            assert shown_at[recipe].get(f"{name}: direction") == (pytest.approx(direction, abs=1e-4) if direction else None)
    auc, direction = means("main recipe", "snli_test")
    assert direction is not None
    (ent, of_ent), (simcse, _) = means("ent", "snli_test"), means("simcse", "snli_test")
    seed = scores(results[0], "ent", "snli_test")[0]
    tokens = (seed["premise_tokens"] - seed["hypothesis_tokens"])[seed["label"] == 0]
    longer = 100 * np.mean((tokens > 0) + 0.5 * (tokens == 0))
    assert simcse > ent
    assert (
        f"On snli_test its recipe has a PR-AUC of {auc:.1f} (simcse {simcse:.1f}, hypothesis-only 41.2, the paper's best 72.5) "
        f"and gets the direction of {direction:.1f} % of the entailment pairs right (ent {of_ent:.1f}, "
        f"counting tokens {longer:.1f}, the paper's best 97.1)."
    ) in " ".join(page.text.split())
    # The paper's directions on SICK are not those of one-way pairs.
    assert set(shown_at["the paper's best"]) == {"sick_test: entailment", "snli_test: entailment", "snli_test: direction"}


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_table_1_is_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    dev = scores(results[0], recipe, "dev")
    thresholds = [swept(seed["label"] == 0, seed["score"]) for seed in dev]
    for (name, pairs), part in zip(SETS.items(), "abc", strict=True):
        of_set = page.tables[f"table-1{part}"]
        assert column(of_set, "threshold")[recipe] == shown(thresholds, 3)
        seeds = scores(results[0], recipe, name)
        assert len(seeds[0]["label"]) == pairs
        areas = [area(seed["label"] == 0, seed["score"]) for seed in seeds]
        right = [100 * np.mean((s["score"] >= at) == (s["label"] == 0)) for s, at in zip(seeds, thresholds, strict=True)]
        assert column(page.tables["table-1"], f"{name}: PR-AUC")[recipe] == shown(areas)
        assert column(of_set, "accuracy")[recipe] == shown(right)
        hard = hard_of(name, pairs)
        of_hard = [area(seed["label"][hard] == 0, seed["score"][hard]) for seed in seeds]
        assert column(page.tables["table-1"], f"{name}: hard pairs")[recipe] == shown(of_hard)
        entailed = 100 * np.mean(seeds[0]["label"] == 0)
        assert column(page.tables["table-1"], f"{name}: PR-AUC")["chance"] == f"{entailed:.1f}"
        of_hard_ones = 100 * np.mean(seeds[0]["label"][hard] == 0)
        assert column(page.tables["table-1"], f"{name}: hard pairs")["chance"] == f"{of_hard_ones:.1f}"
        assert column(page.tables["table-1"], f"{name}: hard pairs")["hypothesis-only"] == "–"
        assert column(of_set, "accuracy")["majority, chance"] == f"{100 - entailed:.1f}"
        assert column(of_set, "average precision")["majority, chance"] == f"{entailed:.1f}"


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_the_directed_columns_are_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    for (name, pairs), part in zip(SETS.items(), "abc", strict=True):
        table, hard = page.tables[f"table-1{part}"], hard_of(name, pairs)
        areas: list[float] = []
        hard_areas: list[float] = []
        steps: list[float] = []
        by_length: list[float] = []
        neutral: list[float] = []
        for seed in scores(results[0], recipe, name):
            one_way, rest = (seed["label"] == 0) & (seed["reverse_label"] != 0), seed["label"] != 0
            right = np.repeat([True, False], [one_way.sum(), rest.sum() + one_way.sum()])
            found = np.concatenate([seed["score"][one_way], seed["score"][rest], seed["reverse_score"][one_way]])
            areas.append(area(right, found))
            steps.append(100 * average_precision_score(right, found))
            kept = np.concatenate([hard[one_way], hard[rest], hard[one_way]])
            hard_areas.append(area(right[kept], found[kept]))
            if "sim_hp" in seed:
                neutral.append(float(100 * np.mean((seed["sim_hp"] > seed["sim_ph"])[seed["label"] == 1])))
            more = seed["premise_tokens"] - seed["hypothesis_tokens"]
            turned = np.concatenate([more[one_way], more[rest], -more[one_way]])
            by_length.append(100 * average_precision_score(right, turned))
        assert column(table, "directed PR-AUC")[recipe] == shown(areas)
        assert column(table, "directed average precision")[recipe] == shown(steps)
        assert column(table, "hard pairs: directed PR-AUC")[recipe] == shown(hard_areas)
        assert column(table, "neutral pairs by sim")[recipe] == (shown(neutral) if neutral else "not defined")
        assert column(table, "directed average precision")["length-only"] == f"{by_length[-1]:.1f}"


@pytest.mark.parametrize("recipe", ["main recipe", "ent"])
def test_table_2_is_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    for name, part in zip(SETS, "abc", strict=True):
        found = page.tables[f"table-2{part}"]
        by: dict[str, list[float]] = {}
        for seed in scores(results[0], recipe, name):
            entailed = seed["label"] == 0
            longer = seed["premise_tokens"] > seed["hypothesis_tokens"]
            one_way, two_way = seed["reverse_label"] > 0, seed["reverse_label"] == 0
            subsets = {"all": entailed, "premise not longer": entailed & ~longer}
            if name == "sick_test":
                subsets |= {"one-way": entailed & one_way, "one-way, premise not longer": entailed & one_way & ~longer}
                subsets |= {"two-way": entailed & two_way}
            subsets |= {"hard pairs": entailed & hard_of(name, SETS[name])}
            subsets |= {"neutral pairs": seed["label"] == 1}
            for kind, rows in subsets.items():
                equal = seed["premise_tokens"] == seed["hypothesis_tokens"]
                heading = f"{kind} ({rows.sum():,})"
                sim, var = seed["sim_hp"] > seed["sim_ph"], seed["premise_log_var"] > seed["hypothesis_log_var"]
                by.setdefault(f"{heading}: sim", []).append(100 * float(np.mean(sim[rows])))
                by.setdefault(f"{heading}: var", []).append(100 * float(np.mean(var[rows])))
                length_only = 100 * np.mean((longer + 0.5 * equal)[rows])
                assert column(found, f"{heading}: sim")["length-only"] == f"{round(length_only, 4):.1f}"
                assert column(found, f"{heading}: sim")["chance"] == "50.0"
        assert found[0][3:] == list(by)
        assert {heading: column(found, heading)[recipe] for heading in by} == {h: shown(v) for h, v in by.items()}


def test_table_4_is_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    def ranks(values: NDArray[np.float64]) -> NDArray[np.int_]:
        return np.argsort(np.argsort(values))

    for heading, name in (("cosine of means", "cosine"), ("symmetrised similarity", "similarity")):
        seeds = scores(results[0], "main recipe", "stsb_test")
        values = [100 * np.corrcoef(ranks(seed[name]), ranks(seed["score"]))[0, 1] for seed in seeds]
        assert column(page.tables["table-4"], f"stsb_test: {heading}")["main recipe"] == shown(values)


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_tables_5_and_6_are_what_the_scores_give(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    thresholds = [swept(seed["label"] == 0, seed["score"]) for seed in scores(results[0], recipe, "dev")]
    seeds = scores(results[0], recipe, "sick_test")

    def cell(table: str, heading: str) -> str:
        rows = page.tables[table]
        (found,) = (row for row in rows if row[:2] == ["sick_test", recipe])
        return found[rows[0].index(heading)]

    for code, label in enumerate(("entailment", "neutral", "contradiction")):
        called = [100 * float(np.mean(s["score"][s["label"] == code] >= at)) for s, at in zip(seeds, thresholds, strict=True)]
        assert cell("table-6", f"{label} called entailment") == shown(called)
    probability = [np.clip(seed["score"], 0, 1) for seed in seeds]
    brier = [100 * float(np.mean((p - (seed["label"] == 0)) ** 2)) for p, seed in zip(probability, seeds, strict=True)]
    assert cell("table-6", "Brier score") == shown(brier)
    beyond = [100 * float(np.mean((seed["score"] < 0) | (seed["score"] > 1))) for seed in seeds]
    assert cell("table-6", "scores beyond [0, 1]") == shown(beyond)
    assert (max(beyond) > 0) == (recipe == "simcse")
    if recipe == "simcse":
        assert cell("table-5", "agrees with length-only") == "not defined"
        assert cell("table-5", "pairs of unequal length") == "not defined"
        return
    agrees: list[float] = []
    for seed in seeds:
        longer = (seed["premise_tokens"] - seed["hypothesis_tokens"])[seed["label"] == 0]
        wider = (seed["premise_log_var"] - seed["hypothesis_log_var"])[seed["label"] == 0]
        agrees.append(100 * float(np.mean((wider > 0)[longer != 0] == (longer > 0)[longer != 0])))
    assert cell("table-5", "agrees with length-only") == shown(agrees)
    same = (seeds[0]["premise_tokens"] == seeds[0]["hypothesis_tokens"])[seeds[0]["label"] == 0]
    assert cell("table-5", "pairs of unequal length") == f"{int((~same).sum()):,}"
    assert cell("table-5", "pairs of equal length") == f"{int(same.sum()):,}"


def test_the_marked_threshold_is_where_the_scores_put_it(results: tuple[Path, Params], page: HtmlPage) -> None:
    at = swept((dev := scores(results[0], "ent", "dev")[0])["label"] == 0, dev["score"])
    seed = scores(results[0], "ent", "sick_test")[0]
    called, entailed = seed["score"] >= at, seed["label"] == 0
    (traces,) = (figure["data"] for figure in json.loads(page.scripts[0]) if figure["id"] == "precision-recall-1")
    (marked, *_) = (t for t in traces if t["mode"] == "markers" and t["name"] == "ent" and t["meta"]["view"] == "seeds")
    assert marked["x"] == [pytest.approx((called & entailed).sum() / entailed.sum(), abs=1e-4)]
    assert marked["y"] == [pytest.approx((called & entailed).sum() / called.sum(), abs=1e-4)]
    assert marked["customdata"] == [at]


LENGTH_ONLY = "length-only"


def cells(page: HtmlPage) -> dict[tuple[str, str, str], str]:
    """(recipe, set, metric) → the cell that shows it."""
    found: dict[tuple[str, str, str], str] = {}
    parts = dict(zip(SETS, "abc", strict=True))
    for recipe in FOLDERS:
        for name, part in parts.items():
            for metric, heading in (("pr_auc", "PR-AUC"), ("hard.pr_auc", "hard pairs")):
                found[recipe, name, metric] = column(page.tables["table-1"], f"{name}: {heading}")[recipe]
            for metric, heading in (("accuracy", "accuracy"), ("hard.directed_pr_auc", "hard pairs: directed PR-AUC")):
                found[recipe, name, metric] = column(page.tables[f"table-1{part}"], heading)[recipe]
            for metric in ("directed_pr_auc", "directed_average_precision"):
                heading = metric.replace("_", " ").replace("pr auc", "PR-AUC")
                cell = column(page.tables[f"table-1{part}"], heading)
                found[recipe, name, metric], found[LENGTH_ONLY, name, f"{metric}_length_only"] = cell[recipe], cell[LENGTH_ONLY]
            for heading in page.tables[f"table-2{part}"][0][3:]:
                kind, _, by = heading.rpartition(": ")
                prefix = re.sub(r" \([\d,]+\)$", "", kind).replace("all", "").replace("premise ", "").replace(" pairs", "")
                metric = "direction." + (re.sub(r"[ -]|, ", "_", prefix.replace(", ", " ")) + "_" if prefix else "") + by
                cell = column(page.tables[f"table-2{part}"], heading)
                found[recipe, name, metric] = cell[recipe]
                found[LENGTH_ONLY, name, re.sub(r"(sim|var)$", "length_only", metric)] = cell[LENGTH_ONLY]
        for metric, heading in (("spearman_cosine", "cosine of means"), ("spearman_similarity", "symmetrised similarity")):
            found[recipe, "stsb_test", metric] = column(page.tables["table-4"], f"stsb_test: {heading}")[recipe]
    return found


def test_dvc_s_metrics_agree_to_the_digit(results: tuple[Path, Params], page: HtmlPage) -> None:
    found, compared = cells(page), 0
    main = json.loads((results[0] / "results/evaluate/metrics.json").read_text(encoding="utf-8"))
    variants = json.loads((results[0] / "results/experiments/metrics.json").read_text(encoding="utf-8"))
    for recipe, sets in {"main recipe": main, **variants}.items():
        for name, metrics in sets.items():
            for metric, value in metrics.items():
                row = LENGTH_ONLY if metric.endswith("length_only") else recipe
                assert found[row, name, metric].partition(" ± ")[0] == f"{value:.1f}", (recipe, name, metric)
                compared += 1
    assert compared > 25


def test_what_mlflow_has_agrees_to_the_digit(results: tuple[Path, Params], page: HtmlPage, tmp_path: Path) -> None:
    tracker = open_tracker(TrackingParams(uri=None, experiment="agreement"), tmp_path)
    run = tracker.client.create_run(tracker.experiment_id).info.run_id
    main = json.loads((results[0] / "results/evaluate/summary.json").read_text(encoding="utf-8"))["main recipe"]
    variants = json.loads((results[0] / "results/experiments/summary.json").read_text(encoding="utf-8"))
    # As the stages evaluate and experiment log them.
    log_metrics(tracker, run, flatten(main) | flatten({"experiments": variants}))
    logged: Mapping[str, float] = tracker.client.get_run(run).data.metrics
    compared = 0
    for (recipe, name, metric), text in cells(page).items():
        if recipe == LENGTH_ONLY:
            continue
        prefix = "" if recipe == "main recipe" else f"experiments.{recipe}."
        key = f"{prefix}{name}.{metric}"
        if text == "not defined":
            assert f"{key}.mean" not in logged
            continue
        assert text == f"{round(logged[f'{key}.mean'], 4):.1f} ± {round(logged[f'{key}.sd'], 4):.1f}", key
        compared += 1
    assert compared > 50


def test_every_seed_s_value_stands_behind_its_cell(results: tuple[Path, Params], full: tuple[str, str]) -> None:
    main = json.loads((results[0] / "results/evaluate/per_seed.json").read_text(encoding="utf-8"))["main recipe"]
    variants = json.loads((results[0] / "results/experiments/per_seed.json").read_text(encoding="utf-8"))
    for per_seed in (main, *variants.values()):
        values = [per_seed[f"seed-{seed}"]["snli_test"]["pr_auc"] for seed in (1, 2, 3)]
        detail = ", ".join(f"seed {seed}: {value:.4f}" for seed, value in zip((1, 2, 3), values, strict=True))
        assert f'title="{detail}"' in full[0]


def test_trials_are_named_as_the_pipeline_names_them(results: tuple[Path, Params]) -> None:
    trial = recipe_of(results[1], "ent+con").trial(3e-5, 64, 7)
    assert trial_name("ent+con", 3e-5, 64, 7) == trial.name
    for recipe in content_of(*results).recipes:
        assert recipe.failure or all(len(steps) == 10 for steps in recipe.learning.values())
