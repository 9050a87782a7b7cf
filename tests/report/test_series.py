"""The points in report/curves, against those of the page's figures."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import pytest

from pipeline.config.params import Params
from tests.report.reading import HtmlPage

RECIPES = ("main recipe", "ent", "simcse")


def series(root: Path, name: str) -> dict[tuple[str, str, str], list[dict[str, str]]]:
    """(recipe, set, seed) → its points."""
    found = defaultdict[tuple[str, str, str], list[dict[str, str]]](list)
    with (root / "report-full/curves" / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row.pop("recipe"), row.pop("set"), row.pop("seed")].append(row)
    return found


def test_the_figures_show_their_means_over_the_seeds(results: tuple[Path, Params], page: HtmlPage) -> None:
    compared = 0
    for stem, name, x, y in (
        ("direction-by-length-{}-sim", "direction_by_length", "log2_length_ratio", "sim"),
        ("direction-by-length-{}-var", "direction_by_length", "log2_length_ratio", "var"),
        ("variance-{}-mean_log_var", "variance_by_length", "tokens", "mean_log_var"),
        ("calibration-{}-entailed", "calibration", "mean_score", "entailed"),
    ):
        for k, set_name in enumerate(["sick_test", "snli_test"]):
            traces = {t["name"]: t for t in page.figures[stem.format(k)][0] if t.get("fill") != "toself"}
            for recipe in RECIPES:
                points: dict[float, list[tuple[float, float]]] = defaultdict(list)
                for (of, on, _), rows in series(results[0], name).items():
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
