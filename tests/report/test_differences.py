"""Differences between recipes, against a bootstrap that is written again with scikit-learn."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import auc, precision_recall_curve

from pipeline.config.load import load_params
from pipeline.config.paths import DEV_TOKENS, TEST_TOKENS
from pipeline.data.token_store import MANIFEST
from pipeline.report.differences import Difference, differences, table, write
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN
from tests.evaluation.tables import scored
from tests.store import make_store, write_table

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


def compared(folder: Path, documents: int, sentences: int, *models: dict[str, Any]) -> list[Difference]:
    """The differences between models of one seed each, on a set of running text; of each model, the columns of its scores."""
    document = np.repeat(np.arange(documents, dtype=np.int32), sentences)
    make_store(folder / DEV_TOKENS, [[1, 2]])
    columns = {"sentence": np.zeros_like(document), "document": document, "position": np.zeros_like(document)}
    write_table({name: pa.array(values) for name, values in columns.items()}, folder / DEV_TOKENS / "dev_text.text.arrow")
    write_json(folder / DEV_TOKENS / MANIFEST, read_json(folder / DEV_TOKENS / MANIFEST) | {"text_sets": ["dev_text"]})
    make_store(folder / TEST_TOKENS, [[1, 2]])
    made: list[Any] = [
        SimpleNamespace(name=f"model {k}", per_seed={1: {}}, summary={"dev_text": {}}, scores=folder / str(k))
        for k in range(len(models))
    ]
    for recipe, scores in zip(made, models, strict=True):
        (recipe.scores / "dev_text").mkdir(parents=True)
        scores = {"document": np.repeat(np.arange(documents), sentences - 1)} | scores
        pq.write_table(pa.table(scores), recipe.scores / "dev_text/seed-1.parquet")
    return differences(made, load_params(PLAIN).evaluate, folder)


def test_documents_are_drawn_whole(tmp_path: Path) -> None:
    # In each of 32 documents all rows have the same answer: the interval is that of 32 draws.
    better, wrong = np.repeat(np.arange(32) % 2 == 0, 8), np.zeros(256, bool)
    rows = compared(
        tmp_path,
        32,
        9,
        {"next_sentence": better, "next_sentence_cosine": wrong},
        {"next_sentence": wrong, "next_sentence_cosine": ~wrong},
    )
    by_metric = {row["metric"]: row for row in rows}
    assert by_metric.keys() == {"next_sentence", "next_sentence_cosine"}
    found, cosine = by_metric.values()
    assert (found["difference"], cosine["difference"]) == (50.0, -100.0)
    # Student's t for 31 degrees of freedom.
    assert float(found["high"]) - 50 == pytest.approx(2.04 * 50 / np.sqrt(31), rel=0.1)
    assert cosine["low"] == cosine["high"] == -100.0


def test_one_document_has_no_interval(tmp_path: Path) -> None:
    right = np.ones(64, bool)
    rows = compared(tmp_path, 1, 65, {"next_sentence": right}, {"next_sentence": ~right})
    (cell,) = (row.cells[-1] for row in table(rows)[0].rows)
    assert (cell.text, cell.best) == ("+100.0", False)


@pytest.mark.parametrize("other", [np.repeat(np.arange(8), 7), np.roll(np.repeat(np.arange(8), 8), 1)])
def test_scores_of_other_rows_are_refused(tmp_path: Path, other: np.ndarray) -> None:
    right = np.ones(64, bool)
    moved = {"document": other, "next_sentence": np.ones(len(other), bool)}
    with pytest.raises(
        UserError, match=r"^model 1, seed 1: scored on other rows of dev_text than the other models; run `dvc repro`$"
    ):
        compared(tmp_path, 8, 9, {"next_sentence": right}, moved)
