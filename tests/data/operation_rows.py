"""Operation rows for tests: written, read back, and their components by another algorithm."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams
from pipeline.config.load import load_params
from pipeline.data.schema import OPERATION_ROWS, OPERATIONS, TWO_INPUTS
from tests.copies import PLAIN

Row = tuple[str, str, str | None, str]
"""Operation, a, b, target."""
NAMES = {
    "train": "train/operations.parquet",
    "dev_operations": "dev/dev_operations.operations.parquet",
    "promotion_operations": "promotion/promotion_operations.operations.parquet",
}
PARTS = ("dev_operations", "promotion_operations")


def params(root: Path, **files: Any) -> DataParams:
    """Section data with these keys of `data.files`, and no pairs."""
    given = load_params(PLAIN).data.model_dump(mode="json")
    given |= {"source": "files", "root": str(root), "promotion_share": 0.5}
    given["files"] = {"train": [], "dev": None, "tests": {}, "sts": {}, **files}
    return DataParams.model_validate_json(json.dumps(given))


def generated(rows: int) -> DataParams:
    given = load_params(PLAIN).data
    return given.model_copy(update={"generated": given.generated.model_copy(update={"operations": rows})})


def write(path: Path, rows: Iterable[Row]) -> None:
    names = ("operation", "a", "b", "target")
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


def read(prepared: Path, name: str) -> list[Row]:
    table = pq.read_table(prepared / NAMES.get(name, f"tests/{name}.operations.parquet"))
    assert table.schema.equals(OPERATION_ROWS)
    return [(OPERATIONS[row["operation"]], row["a"], row["b"], row["target"]) for row in table.to_pylist()]


def sentences(row: Row) -> set[str]:
    return {text for text in row[1:] if text is not None}


def connected(rows: Sequence[Row]) -> list[list[int]]:
    """The components, by joining the sentences of each row."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while parent.setdefault(text, text) != text:
            text = parent[text]
        return text

    for row in rows:
        for text in sentences(row):
            parent[root(text)] = root(row[1])
    components: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        components.setdefault(root(row[1]), []).append(number)
    return list(components.values())


def many(seed: int, number: int, pool: int) -> list[Row]:
    """Different rows over a pool of sentences, so that some are connected."""
    r = random.Random(seed)
    rows: dict[Row, None] = {}
    while len(rows) < number:
        operation = r.choice(OPERATIONS)
        a, b, target = (f"Sentence {k}." for k in r.sample(range(pool), 3))
        rows[operation, a, b if operation in TWO_INPUTS else None, target] = None
    return list(rows)


def dev_rows(number: int) -> list[Row]:
    return [
        (operation, f"In {k} {operation}.", f"Too {k} {operation}." if operation in TWO_INPUTS else None, f"Out {k} {operation}.")
        for k in range(number)
        for operation in OPERATIONS
    ]
