"""Readers for all sources of sentence pairs. All give the same rows: stripped text and label codes, in batches.

Any fault of an input raises a `UserError` that names the file and, if known, the row (the first is 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import pyarrow as pa

from pipeline.config.data_params import FileSpec, StsSpec
from pipeline.data.generated import generate
from pipeline.data.readers.convert import Graded, Pairs
from pipeline.data.readers.formats import opened
from pipeline.data.readers.hub import read_hub_pairs
from pipeline.data.readers.labels import LabelNames
from pipeline.data.readers.layouts import more_columns, pair_columns, sts_columns
from pipeline.data.readers.quotes import form_of
from pipeline.data.readers.row_blocks import reading
from pipeline.data.rows import BATCH_ROWS, Rows
from pipeline.data.schema import LABELS, NO_LABEL, RAW_PAIRS

__all__ = ["GENERATED", "read_generated", "read_hub_pairs", "read_pairs", "read_sts"]

GENERATED = "generated"


def read_generated(split: Literal["train", "dev", "test"], pairs: int, seed: int) -> Rows:
    """Pairs from the generated source."""

    def batches() -> Iterator[pa.RecordBatch]:
        rows = generate(split, pairs, seed)
        while chunk := list(islice(rows, BATCH_ROWS)):
            premise, hypothesis, label = zip(*chunk, strict=True)
            yield pa.record_batch(
                [
                    pa.array(premise, pa.string()),
                    pa.array(hypothesis, pa.string()),
                    pa.array(map(LABELS.index, label), pa.int8()),
                    pa.repeat(pa.scalar(NO_LABEL, pa.int8()), len(chunk)),
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
    name, form = spec.path, form_of(spec)
    with reading(name), opened(root, name, form) as (table, _, hint):
        both_ways = pair_columns(name, spec, table.columns, hint).reverse_label is not None
        more_columns(name, spec.where, table.columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name), opened(root, name, form) as (table, stem, hint):
            columns, more = pair_columns(name, spec, table.columns, hint), more_columns(name, spec.where, table.columns)
            labels = LabelNames(spec.labels)
            pairs = Pairs(name, stem, columns, more, labels, labels, spec)
            yield from pairs.batches(table.blocks(more.with_columns(columns)))

    return Rows(name=name, batches=batches, both_ways=both_ways)


def read_sts(root: Path, spec: StsSpec) -> Rows:
    """Graded pairs from the file `spec.path` under `root`; `source` and errors as in `read_pairs`."""
    name, form = spec.path, form_of(spec)
    with reading(name), opened(root, name, form) as (table, _, hint):
        sts_columns(name, spec, table.columns, hint)
        more_columns(name, spec.where, table.columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name), opened(root, name, form) as (table, stem, hint):
            columns, more = sts_columns(name, spec, table.columns, hint), more_columns(name, spec.where, table.columns)
            graded = Graded(name, stem, columns, more, spec.where)
            yield from graded.batches(table.blocks(more.with_columns(columns)))

    return Rows(name=name, batches=batches)
