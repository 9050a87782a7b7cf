"""The gain of the main recipe over its variants, from the scores of single rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.report.results import Results
from pipeline.report.tables import gain_rows
from pipeline.utils.errors import UserError

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
"""Set → for each seed, column → values."""


def recipe(folder: Path, name: str, tables: Tables) -> Any:
    for set_name, seeds in tables.items():
        (folder / name / set_name).mkdir(parents=True)
        for seed, columns in enumerate(seeds):
            pq.write_table(pa.table(dict(columns)), folder / name / set_name / f"seed-{seed}.parquet")
    seeds = max((len(per_seed) for per_seed in tables.values()), default=0)
    return SimpleNamespace(
        name=name,
        summary={set_name: {} for set_name in tables},
        per_seed={seed: {} for seed in range(seeds)},
        scores=folder / name,
    )


def content(*recipes: Any) -> Results:
    return cast(Results, SimpleNamespace(main=recipes[0], recipes=recipes))


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[+-][\d.]+", cell)]


def test_a_gain_is_the_difference_of_the_means_over_seeds(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    row = list(range(400))
    ours = [{"row": row, "logistic": random.random(400) < 0.7, "mean_classifier": random.random(400) < 0.5} for _ in range(3)]
    theirs = [{"row": row, "logistic": random.random(400) < 0.6, "mean_classifier": random.random(400) < 0.5} for _ in range(2)]
    main, variant = recipe(tmp_path, "main", {"task": ours}), recipe(tmp_path, "variant", {"task": theirs})
    measures = [("task", "logistic"), ("task", "mean_classifier")]
    cells = gain_rows(content(main, variant, recipe(tmp_path, "failed", {})), measures)
    assert cells.keys() == {"variant"}
    for cell, (_, metric) in zip(cells["variant"], measures, strict=True):
        difference = np.mean([seed[metric] for seed in ours], 0) - np.mean([seed[metric] for seed in theirs], 0)
        gain, low, high = numbers(cell)
        assert gain == pytest.approx(100 * difference.mean(), abs=0.051)
        half = 1.96 * 100 * difference.std() / np.sqrt(400)
        assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_documents_are_drawn_whole(tmp_path: Path) -> None:
    # In each of 40 documents all ten rows have the same answer: the interval is that of 40 draws.
    better = np.repeat(np.arange(40) % 2 == 0, 10)
    document = np.repeat(np.arange(40), 10)
    main = recipe(tmp_path, "main", {"text": [{"document": document, "next_sentence": better}]})
    variant = recipe(tmp_path, "variant", {"text": [{"document": document, "next_sentence": np.zeros(400, bool)}]})
    gain, low, high = numbers(gain_rows(content(main, variant), [("text", "next_sentence")])["variant"][0])
    assert gain == 50.0
    assert (high - low) / 2 == pytest.approx(1.96 * 50 / np.sqrt(40), rel=0.1)


def test_one_document_has_no_interval(tmp_path: Path) -> None:
    tables = [{"text": [{"document": [0, 0, 0, 0], "next_sentence": right}]} for right in ([True] * 4, [True, False] * 2)]
    main, variant = (recipe(tmp_path, name, table) for name, table in zip(("main", "variant"), tables, strict=True))
    assert gain_rows(content(main, variant), [("text", "next_sentence")]) == {"variant": ["+50.0"]}


def test_other_rows_are_refused(tmp_path: Path) -> None:
    one = {"row": [0, 1], "logistic": [True, False]}
    other = {"row": [0, 2], "logistic": [True, False]}
    main, variant = recipe(tmp_path, "main", {"task": [one]}), recipe(tmp_path, "variant", {"task": [other]})
    with pytest.raises(UserError, match=r"variant/task: has other rows than .*main/task; run `dvc repro`$"):
        gain_rows(content(main, variant), [("task", "logistic")])
    longer = {"row": [0, 1, 2], "logistic": [True, False, True]}
    seeds = recipe(tmp_path, "seeds", {"task": [one, longer]})
    with pytest.raises(UserError, match=r"seed-1\.parquet: has other rows than the scores of another seed; run `dvc repro`$"):
        gain_rows(content(seeds, main), [("task", "logistic")])
