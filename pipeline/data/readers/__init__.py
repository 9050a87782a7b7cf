"""Readers for all sources of sentence pairs. All give the same rows: stripped text and label codes, in batches.

Any fault of an input raises a `UserError` that names the file and, if known, the row (the first is 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.generated import generate
from pipeline.data.readers.convert import Graded, Pairs
from pipeline.data.readers.formats import Opened, opened
from pipeline.data.readers.hub import opened_split
from pipeline.data.readers.layouts import more_columns, pair_columns, sts_columns
from pipeline.data.readers.row_blocks import reading
from pipeline.data.rows import BATCH_ROWS, Rows
from pipeline.data.schema import LABELS, RAW_PAIRS

__all__ = ["GENERATED", "read_generated", "read_hub_pairs", "read_pairs", "read_sts"]

GENERATED = "generated"


def read_generated(split: Literal["train", "dev", "test"], pairs: int, seed: int) -> Rows:
    """Pairs from the generated source."""

    def batches() -> Iterator[pa.RecordBatch]:
        rows = generate(split, pairs, seed)
        while chunk := list(islice(rows, BATCH_ROWS)):
            premise, hypothesis, label, reverse = zip(*chunk, strict=True)
            yield pa.record_batch(
                [
                    pa.array(premise, pa.string()),
                    pa.array(hypothesis, pa.string()),
                    pa.array(map(LABELS.index, label), pa.int8()),
                    pa.array(map(LABELS.index, reverse), pa.int8()),
                    pa.repeat(pa.scalar(True), len(chunk)),
                    pa.repeat(pa.scalar(GENERATED), len(chunk)),
                ],
                schema=RAW_PAIRS,
            )

    return Rows(name=GENERATED, batches=batches)


def read_pairs(root: Path, spec: FileSpec) -> Rows:
    """Pairs from the file `spec.path` under `root`.

    `source` of a row is the file's stem, followed by `:value` if the file has a text column `source`.

    Raises:
        UserError: the file is outside `root`, is missing or unreadable, or lacks a column. A wrong value raises it later, while
            the rows are read.
    """
    return _read(spec.path, spec, partial(opened, root, spec.path, spec), pair_columns, Pairs)


def read_sts(root: Path, spec: StsSpec) -> Rows:
    """Graded pairs from the file `spec.path` under `root`; `source` and errors as in `read_pairs`."""
    return _read(spec.path, spec, partial(opened, root, spec.path, spec), sts_columns, Graded)


def read_hub_pairs(root: Path, spec: HubSpec) -> Rows:
    """Pairs from one split of the data set `spec.dataset`, which is a folder under `root` or a hub id at `spec.revision`.

    `source` of a row is the name of the data set, followed by `:value` if it has a text column `source`.

    Raises:
        UserError: the data set, its revision, configuration or split does not exist or cannot be reached; and as in `read_pairs`.
    """
    return _read(spec.name, spec, partial(opened_split, root, spec), pair_columns, Pairs)


def _read(
    name: str,
    spec: FileSpec | HubSpec | StsSpec,
    open_file: Callable[[], AbstractContextManager[Opened]],
    columns_of: Callable[..., Any],
    converter: Callable[..., Pairs | Graded],
) -> Rows:
    with reading(name), open_file() as file:
        columns = columns_of(name, spec, file.table.columns, file.hint)
        more = more_columns(name, spec.where, file.table.columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name), open_file() as file:
            yield from converter(name, file, columns, more, spec).batches(file.table.blocks(more.with_columns(columns)))

    return Rows(name=name, batches=batches)
