"""Readers for all sources of sentence pairs. All give the same rows: stripped text and label codes, in batches.

Any fault of an input raises a `UserError` that names the file and, if known, the row (the first is 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import pyarrow as pa

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.generated import generate
from pipeline.data.readers.convert import Columns, graded_batches, pair_batches
from pipeline.data.readers.formats import Opened, opened
from pipeline.data.readers.hub import opened_split
from pipeline.data.readers.layouts import SOURCE, PairColumns, StsColumns, pair_columns, require_columns, sts_columns
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
            premise, hypothesis, *labels = zip(*chunk, strict=True)
            codes = ([LABELS.index(label) for label in column] for column in labels)
            constant = ([value] * len(chunk) for value in (True, GENERATED))
            yield pa.record_batch([premise, hypothesis, *codes, *constant], schema=RAW_PAIRS)

    return Rows(name=GENERATED, batches=batches)


def read_pairs(root: Path, spec: FileSpec) -> Rows:
    """Pairs from the file `spec.path` under `root`.

    `source` of a row is the file's stem, followed by `:value` if the file has a text column `source`.

    Raises:
        UserError: the file is outside `root`, is missing or unreadable, or lacks a column. A wrong value raises it later, while
            the rows are read.
    """
    return _read(spec.path, spec, partial(opened, root, spec.path, spec), pair_columns, pair_batches)


def read_sts(root: Path, spec: StsSpec) -> Rows:
    """Graded pairs from the file `spec.path` under `root`; `source` and errors as in `read_pairs`."""
    return _read(spec.path, spec, partial(opened, root, spec.path, spec), sts_columns, graded_batches)


def read_hub_pairs(root: Path, spec: HubSpec) -> Rows:
    """Pairs from one split of the data set `spec.dataset`, which is a folder under `root` or a hub id at `spec.revision`.

    `source` of a row is the name of the data set, followed by `:value` if it has a text column `source`.

    Raises:
        UserError: the data set, its revision, configuration or split does not exist or cannot be reached; and as in `read_pairs`.
    """
    return _read(spec.name, spec, partial(opened_split, root, spec), pair_columns, pair_batches)


def _read(
    name: str,
    spec: FileSpec | HubSpec | StsSpec,
    open_file: Callable[[], AbstractContextManager[Opened]],
    columns_of: Callable[..., PairColumns | StsColumns],
    convert: Callable[..., Iterator[pa.RecordBatch]],
) -> Rows:
    with reading(name), open_file() as file:
        available = list(file.table.columns)
        columns = columns_of(name, spec, available, file.hint)
        require_columns(name, tuple(spec.where), available)
        wanted = [*columns, *spec.where, *([SOURCE] if available.count(SOURCE) == 1 else [])]

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name), open_file() as file:
            blocks = file.table.blocks(list(dict.fromkeys(column for column in wanted if column is not None)))
            yield from convert(Columns(name, file, spec.where), blocks, columns, spec)

    return Rows(name=name, batches=batches)
