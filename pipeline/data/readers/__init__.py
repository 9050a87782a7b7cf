"""Readers for all sources of sentence pairs. All give the same rows: stripped text and label codes, in batches.

Any fault of an input raises a `UserError` that names the file and, if known, the row (the first is 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.generated import Row
from pipeline.data.readers.columns import (
    SOURCE,
    Columns,
    Seen,
    graded_batches,
    pair_batches,
    pair_columns,
    require_columns,
    sts_columns,
)
from pipeline.data.readers.formats import open_table
from pipeline.data.readers.hub import open_split
from pipeline.data.readers.row_blocks import Table, reading
from pipeline.data.schema import BATCH_ROWS, LABELS, RAW_PAIRS, RawRows

GENERATED = "generated"


def generated_pairs(*sources: Callable[[], Iterator[Row]]) -> RawRows:
    """Pairs that functions write, one after another: a premise, a hypothesis, the label and that of the pair turned round."""

    def batches() -> Iterator[pa.RecordBatch]:
        rows = chain.from_iterable(source() for source in sources)
        while chunk := list(islice(rows, BATCH_ROWS)):
            premise, hypothesis, *labels = zip(*chunk, strict=True)
            codes = ([LABELS.index(label) for label in column] for column in labels)
            constant = ([value] * len(chunk) for value in (True, GENERATED))
            yield pa.record_batch([premise, hypothesis, *codes, *constant], schema=RAW_PAIRS)

    return RawRows(name=GENERATED, batches=batches)


def open_pairs(
    root: Path, spec: FileSpec | HubSpec | StsSpec, seen: Seen | None = None, groups: Callable[[], Table] | None = None
) -> RawRows:
    """Pairs, or graded pairs, from one file or one data set.

    `source` of a row is the stem of the file or the name of the data set, followed by `:value` if it has a text column `source`.

    Args:
        root: the folder of all raw data.
        spec: names a file under `root`, or the split of a data set: a folder under `root`, or a hub id at `spec.revision`.
        seen: where to note what was seen, if somebody else checks the whole file.
        groups: opens the row groups that are read; None: the whole file is.

    Raises:
        UserError: the file is outside `root`, is missing or unreadable, or lacks a column; the data set, its revision,
            configuration or split does not exist or cannot be reached. A wrong value raises it later, while the rows are read.
    """
    name = spec.name if isinstance(spec, HubSpec) else spec.path

    def opened() -> Table:
        if groups is not None:
            return groups()
        return open_split(root, spec) if isinstance(spec, HubSpec) else open_table(root, spec.path, spec)

    with reading(name):
        file = opened()
        columns: Any = sts_columns(name, spec, file) if isinstance(spec, StsSpec) else pair_columns(name, spec, file)
        require_columns(name, columns, file.columns, different=True)
        require_columns(name, list(spec.where), file.columns)
        wanted = [*columns, *spec.where, *([SOURCE] if list(file.columns).count(SOURCE) == 1 else [])]

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name):
            file = opened()
            blocks = file.blocks(list(dict.fromkeys(column for column in wanted if column is not None)))
            read = Columns(name, file, spec.where, seen)
            rows = (
                graded_batches(read, blocks, columns) if isinstance(spec, StsSpec) else pair_batches(read, blocks, columns, spec)
            )
            yield from rows

    return RawRows(name=name, batches=batches)
