"""The points in report/curves against the per-pair scores, counted here in plain loops, and in the page's figures."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config.params import Params
from tests.report.reading import HtmlPage
from tests.report.results import SETS

FOLDERS = {"main recipe": "evaluate/scores/main recipe", "ent": "experiments/scores/ent", "simcse": "experiments/scores/simcse"}
Lines = dict[tuple[str, str, str], list[dict[str, str]]]


@pytest.fixture(scope="module")
def root(results: tuple[Path, Params], full: tuple[str, str]) -> Path:
    return results[0]


def series(root: Path, name: str) -> Lines:
    """(recipe, set, seed) → its points."""
    found: Lines = defaultdict(list)
    with (root / "report-full/curves" / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row.pop("recipe"), row.pop("set"), row.pop("seed")].append(row)
    return found


def scores(root: Path, line: tuple[str, str, str]) -> list[dict[str, Any]]:
    recipe, set_name, seed = line
    return pq.read_table(root / "results" / FOLDERS[recipe] / set_name / f"{seed}.parquet").to_pylist()


def every_line(*recipes: str) -> set[tuple[str, str, str]]:
    return {(recipe, name, f"seed-{seed}") for recipe in recipes for name in SETS for seed in (1, 2, 3)}


def percent(hits: list[bool]) -> float:
    return 100 * sum(hits) / len(hits)


def test_direction_by_length_ratio(root: Path) -> None:
    found = series(root, "direction_by_length")
    assert set(found) == every_line(*FOLDERS)
    for line, points in found.items():
        pairs: dict[float, list[dict[str, Any]]] = defaultdict(list)
        for row in scores(root, line):
            if row["label"] == 0:
                octaves = math.log2(row["premise_tokens"] / row["hypothesis_tokens"])
                # Half octaves up to two; a bin holds its outer edge, but for the rounding of the logarithm.
                steps = 0 if octaves == 0 else min(math.ceil(abs(octaves) * 2 - 1e-9), 5)
                pairs[math.copysign(steps / 2 - 0.25, octaves) if steps else 0.0].append(row)
        assert [float(p["log2_length_ratio"]) for p in points] == pytest.approx(sorted(pairs))
        for point, at in zip(points, sorted(pairs), strict=True):
            assert int(point["pairs"]) == len(pairs[at])
            assert float(point["length_only"]) == (100 if at > 0 else 0 if at < 0 else 50)
            if line[0] == "simcse":
                assert (point["sim"], point["var"]) == ("", "")
            else:
                assert float(point["sim"]) == pytest.approx(percent([r["sim_hp"] > r["sim_ph"] for r in pairs[at]]))
                wider = [r["premise_log_var"] > r["hypothesis_log_var"] for r in pairs[at]]
                assert float(point["var"]) == pytest.approx(percent(wider))


def test_similarity_by_label(root: Path) -> None:
    found = series(root, "similarity")
    assert set(found) == every_line("main recipe", "ent")
    names = {0: "entailment", 1: "neutral", 2: "contradiction", -1: "none"}
    for line, points in found.items():
        rows = scores(root, line)
        for label in {p["label"] for p in points}:
            of_label = [row for row in rows if names[row["label"]] == label]
            for side in ("sim_hp", "sim_ph"):
                bins = {round(float(p["similarity"]), 3): float(p[side]) for p in points if p["label"] == label}
                assert sum(bins.values()) == pytest.approx(100)
                below = percent([row[side] < 0.5 for row in of_label])
                assert sum(share for middle, share in bins.items() if middle < 0.5) == pytest.approx(below)


def test_variance_by_length(root: Path) -> None:
    found = series(root, "variance_by_length")
    assert set(found) == every_line("main recipe", "ent")
    for line, points in found.items():
        rows = scores(root, line)
        sentences = {(row[f"{side}_tokens"], row[f"{side}_log_var"]) for row in rows for side in ("premise", "hypothesis")}
        for point in points:
            values = [log_var for tokens, log_var in sentences if tokens == int(point["tokens"])]
            assert int(point["sentences"]) == len(values) >= 5
            assert float(point["mean_log_var"]) == pytest.approx(sum(values) / len(values))


def test_calibration(root: Path) -> None:
    found = series(root, "calibration")
    assert set(found) == every_line(*FOLDERS)
    for line, points in found.items():
        rows = scores(root, line)
        assert sum(int(p["pairs"]) for p in points) == len(rows)
        entailed = sum(float(p["entailed"]) * int(p["pairs"]) for p in points) / 100
        assert entailed == pytest.approx(sum(row["label"] == 0 for row in rows))
        mass = sum(float(p["mean_score"]) * int(p["pairs"]) for p in points)
        assert mass == pytest.approx(sum(min(max(row["score"], 0), 1) for row in rows))


def test_the_figures_show_their_means_over_the_seeds(root: Path, page: HtmlPage) -> None:
    compared = 0
    for stem, name, x, y in (
        ("direction-by-length-{}-sim", "direction_by_length", "log2_length_ratio", "sim"),
        ("direction-by-length-{}-var", "direction_by_length", "log2_length_ratio", "var"),
        ("variance-{}-mean_log_var", "variance_by_length", "tokens", "mean_log_var"),
        ("calibration-{}-entailed", "calibration", "mean_score", "entailed"),
    ):
        for k, set_name in enumerate(["sick_test", "snli_test"]):
            traces = {t["name"]: t for t in page.figures[stem.format(k)][0] if t.get("fill") != "toself"}
            for recipe in FOLDERS:
                points: dict[float, list[tuple[float, float]]] = defaultdict(list)
                for (of, on, _), rows in series(root, name).items():
                    for row in rows if (of, on) == (recipe, set_name) and rows[0][y] else []:
                        # The scores are in ten bins; a bin's mean score is in the bin.
                        key = math.floor(float(row[x]) * 10) if name == "calibration" else float(row[x])
                        points[key].append((float(row[x]), float(row[y])))
                means = [[sum(v) / 3 for v in zip(*found, strict=True)] for _, found in sorted(points.items()) if len(found) == 3]
                drawn = traces[recipe] if means else {"x": [], "y": []}
                assert drawn["x"] == pytest.approx([mean[0] for mean in means], abs=1e-4)
                assert drawn["y"] == pytest.approx([mean[1] for mean in means], abs=1e-4)
                compared += len(means)
    assert compared > 100
