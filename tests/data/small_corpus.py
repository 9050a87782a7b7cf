"""A small corpus with every kind of row that stage prepare drops, and helpers to write it and to read results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams

Row = tuple[str | None, str | None, str | None]

TRAIN_A: list[Row] = [
    ("A dog runs.", "An animal moves.", "entailment"),  # 0
    ("A dog runs.", "A cat sits.", "contradiction"),  # 1
    ("A dog runs.", "A dog chases a ball.", "neutral"),  # 2
    ("A dog  runs. ", "An animal\tmoves.", "entailment"),  # duplicate of 0 but for white space
    ("A boy reads.", "A boy holds a book.", "entailment"),  # contradictory with the next
    ("A boy reads.", "A boy holds a book.", "neutral"),
    ("", "A door is open.", "entailment"),  # empty
    (None, "A door is open.", "neutral"),  # empty
    ("A door is shut.", "A door is blue.", "-"),  # no gold label
    ("A door is shut.", "A door is blue.", None),  # no gold label
]
TRAIN_B: list[Row] = [
    ("A dog runs.", "An animal moves.", "entailment"),  # duplicate over files
    ("a dog runs.", "An animal moves.", "entailment"),  # kept: case counts
    ("A dog runs.", "A dog is asleep.", "contradiction"),
    ("A dog runs.", "A creature is moving.", "entailment"),
    ("A dog runs.", "Something is not still.", "entailment"),
    ("A ship sails.", "A ship is at sea.", "entailment"),  # leaked pair (dev)
    ("A ship sails.", "A ship is in a bottle.", "contradiction"),  # leaked premise (dev)
    ("A train  stops.", "A train is still.", "entailment"),  # leaked premise (test)
    ("A lamp glows.", "A ship sails.", "entailment"),  # kept: only the sentence is in dev
]
DEV: list[Row] = [
    ("A ship sails.", "A ship is at sea.", "entailment"),
    ("A ship sails.", "A ship is at sea.", "entailment"),
    ("A ship sails.", "A ship is at sea.", "neutral"),
    ("A ship sails.", "A ship sinks.", "-"),
    ("A ship sails.", " ", "neutral"),
]
# The hash of this premise is below one half.
PROMOTED: list[Row] = [
    ("A canoe glides.", "A boat moves.", "entailment"),
    ("A canoe  glides. ", "A canoe is upside down.", "contradiction"),
    ("A canoe glides.", "A canoe is red.", "-"),
]
TEST: list[Row] = [("A train stops.", "A train moves.", "contradiction"), ("A train stops.", "A vehicle stops.", "entailment")]


def write(path: Path, rows: list[Row], **columns: Any) -> None:
    names = ("premise", "hypothesis", "label")
    values = {name: pa.array(list(column), pa.string()) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(values | columns), path)


def write_corpus(root: Path) -> Path:
    write(root / "a.parquet", TRAIN_A)
    write(root / "b.parquet", TRAIN_B)
    write(root / "dev.parquet", [*DEV[:2], *PROMOTED, *DEV[2:]])
    write(root / "test.parquet", TEST, back=["contradiction", "neutral"])
    sts = {"sentence1": ["A crow flies.", "", "A fox."], "sentence2": ["A bird flies.", "A fox.", "A wolf."]}
    pq.write_table(pa.table({**sts, "score": [4.5, 1.0, None]}), root / "sts.parquet")
    return root


def params(root: Path, **changes: Any) -> DataParams:
    return DataParams.model_validate_json(json.dumps(raw_params(root, **changes)))


def raw_params(root: Path, **changes: Any) -> dict[str, Any]:
    files = {
        "train": [{"path": "a.parquet"}, {"path": "b.parquet"}],
        "dev": {"path": "dev.parquet"},
        "tests": {"mine": {"path": "test.parquet", "reverse_label": "back"}},
        "sts": {"graded": {"path": "sts.parquet"}},
    }
    return {
        "source": "files",
        "root": str(root),
        "seed": 1,
        "unlabelled": "drop",
        "promotion_share": 0.5,
        "generated": {"train": 400, "dev": 80, "test": 80},
        "files": files | changes.pop("files", {}),
    } | changes


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
