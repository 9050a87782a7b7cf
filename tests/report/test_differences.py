"""Differences between recipes, against a bootstrap that is written again with scikit-learn."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import auc, precision_recall_curve

from pipeline.config.load import load_params
from pipeline.config.paths import DEV_TOKENS, TEST_TOKENS
from pipeline.report.differences import differences, table, write
from tests.conftest import PLAIN
from tests.evaluation.tables import scored
from tests.store import make_store

PREMISES, SETS = 60, {DEV_TOKENS: "dev", TEST_TOKENS: "a_test"}
LABELS = [k % 3 for k in range(3 * PREMISES)]
GROUPS = np.repeat(np.arange(PREMISES), 3)
SKILLS = {"main recipe": 2.0, "weak & 50%": 0.7, "other_one": 1.9}


@pytest.fixture
def recipes(tmp_path: Path) -> list[Any]:
    """Three recipes with two seeds each, one without results, and the sets that they were scored on."""
    random, made = np.random.default_rng(5), []
    for store, name in SETS.items():
        make_store(
            tmp_path / store, [[1, 2]] * PREMISES, pairs={name: [(int(g), 0, k) for g, k in zip(GROUPS, LABELS, strict=True)]}
        )
    for recipe, skill in SKILLS.items():
        folder = tmp_path / "scores" / recipe
        for name, seed in itertools.product(SETS.values(), (1, 2)):
            score = 1 / (1 + np.exp(-skill * (np.array(LABELS) == 0) - random.normal(size=len(LABELS))))
            (folder / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(
                scored(label=LABELS, score=(1 / (1 + np.exp(-score))).tolist()), folder / name / f"seed-{seed}.parquet"
            )
        made.append(SimpleNamespace(name=recipe, per_seed={1: {}, 2: {}}, summary=dict.fromkeys(SETS.values()), scores=folder))
    return [*made, SimpleNamespace(name="failed", per_seed={}, summary={}, scores=tmp_path)]


def area(recipe: Any, name: str, seed: int, rows: np.ndarray) -> float:
    scores = pq.read_table(recipe.scores / name / f"seed-{seed}.parquet")["score"].to_numpy()[rows]
    precision, recall, _ = precision_recall_curve(np.array(LABELS)[rows] == 0, scores)
    return 100 * float(auc(recall, precision))


def test_every_pair_of_recipes_is_compared(recipes: list[Any], tmp_path: Path) -> None:
    params = load_params(PLAIN)
    rows = differences(recipes, params.evaluate, tmp_path)
    pairs = list(itertools.combinations(SKILLS, 2))
    assert {(row["set"], row["recipe"], row["against"]) for row in rows} == {
        (name, *pair) for name in SETS.values() for pair in pairs
    }
    by_name = {recipe.name: recipe for recipe in recipes}
    random = np.random.default_rng(9)
    draws = [
        np.flatnonzero(np.ones(3 * PREMISES)),
        *((3 * random.integers(0, PREMISES, PREMISES))[:, None] + np.arange(3) for _ in range(400)),
    ]
    for a, b in pairs:
        (row,) = (r for r in rows if (r["set"], r["metric"], r["recipe"], r["against"]) == ("a_test", "pr_auc", a, b))
        found = [
            np.mean([area(by_name[one], "a_test", seed, draw.ravel()) for seed in (1, 2)]) for one in (a, b) for draw in draws
        ]
        values, others = np.array(found).reshape(2, -1)
        assert (row["value"], row["other"]) == pytest.approx((values[0], others[0]))
        assert row["difference"] == pytest.approx(values[0] - others[0])
        half = 2.0 * float(np.std((values - others)[1:], ddof=1)) * (PREMISES / (PREMISES - 1)) ** 0.5
        assert float(row["high"]) - float(row["difference"]) == pytest.approx(half, rel=0.15)
        assert float(row["high"]) + float(row["low"]) == pytest.approx(2 * float(row["difference"]))


def test_csv_latex_and_the_report_have_the_same_numbers(recipes: list[Any], tmp_path: Path) -> None:
    rows = differences(recipes, load_params(PLAIN).evaluate, tmp_path)
    write(rows, tmp_path)
    with (tmp_path / "differences.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [float(row["low"]) for row in read] == pytest.approx([row["low"] for row in rows], abs=1e-4)
    latex = (tmp_path / "differences.tex").read_text(encoding="utf-8").splitlines()
    (shown,) = table(rows)
    assert latex[2] == r"set & metric & recipe & against & value & other & difference \\"
    for row, line, line_of_page in zip(rows, latex[4:-2], shown.rows, strict=True):
        cells = line.removesuffix(r" \\").split(" & ")
        assert cells[-1] == line_of_page.cells[-1].text == f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]"
        assert line_of_page.cells[-1].best == (float(row["low"]) > 0 or float(row["high"]) < 0)
    assert r"weak \& 50\%" in latex[4] and r"pr\_auc" in "".join(latex)
    assert differences(recipes[:1], load_params(PLAIN).evaluate, tmp_path) == []
