"""Labelled texts for a classifier, from a file of any supported format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config.data_params import NO_FORM, TableSpec
from pipeline.data.cleaning import stripped
from pipeline.data.readers.columns import require_columns, text_of
from pipeline.data.readers.formats import open_table
from pipeline.data.readers.row_blocks import Block, listed, reading, shown
from pipeline.data.schema import TASK_PARTS, TASK_TEXTS
from pipeline.utils.errors import UserError

LABEL, SPLIT = "label", "split"
TRAIN, DEV, TEST = range(3)


@dataclass(frozen=True, slots=True)
class Task:
    """n rows of one or two texts, each row with a class."""

    name: str
    texts: tuple[list[str], ...]
    """One or two lists of n texts."""
    label: NDArray[np.int64]
    """(n,), positions in `classes`."""
    classes: tuple[str, ...]
    """Sorted."""
    part: NDArray[np.int8] | None
    """(n,) positions in `TASK_PARTS`, by column split; None if the file has no such column."""


def read_task(path: Path, form: TableSpec = NO_FORM) -> Task:
    """Read a file with columns text, or sentence1 and sentence2; label; and, if the data have a fixed split, split.

    Labels are text, numbers or, in a Parquet file, true and false. White space around a label or a split does not count.

    Raises:
        UserError: the file cannot be read, lacks a column or has one twice, or a value is missing or of another type; `split` has
            other values than train, dev and test, or no train or test; the rows to learn from have one label only.
    """
    name = str(path)
    if not path.is_file():
        raise UserError(f"{name}: is not a file; name a Parquet, csv or jsonl file")
    with reading(name):
        table = open_table(path.parent, path.name, form)
        wanted = _wanted(name, table.columns)
        values: dict[str, list[str]] = {column: [] for column in wanted}
        for block in table.blocks(wanted):
            for column in wanted:
                values[column] += _values(name, block, column)
    if not values[LABEL]:
        raise UserError(f"{name}: has no rows")
    classes, label = np.unique(np.array(values[LABEL]), return_inverse=True)
    part = _parts(name, values[SPLIT]) if SPLIT in values else None
    learned = label if part is None else label[part == TRAIN]
    if len(np.unique(learned)) < 2:
        raise UserError(f"{name}: all rows to learn from have the label {classes[learned[0]]}; a task needs two labels or more")
    texts = tuple(values[column] for column in wanted if column not in (LABEL, SPLIT))
    return Task(table.stem, texts, label.astype(np.int64), tuple(classes.tolist()), part)


def _wanted(name: str, available: Sequence[str]) -> list[str]:
    fits = [columns for columns in TASK_TEXTS if set(columns) <= set(available)]
    if len(fits) != 1 or LABEL not in available:
        raise UserError(
            f"{name}: needs a column {LABEL}, and either text or sentence1 and sentence2; it has {listed(available)}"
            f"{'; leave text or the other two out' if len(fits) > 1 else ''}"
        )
    wanted = [*fits[0], LABEL, *([SPLIT] if SPLIT in available else [])]
    require_columns(name, wanted, available)
    return wanted


def _parts(name: str, split: Sequence[str]) -> NDArray[np.int8]:
    if strange := sorted(set(split) - set(TASK_PARTS)):
        raise UserError(f"{name}: split is {shown(strange[0])}; it must be {', '.join(TASK_PARTS)}")
    for part in (TRAIN, TEST):
        if TASK_PARTS[part] not in split:
            raise UserError(f"{name}: no row has split {TASK_PARTS[part]}; without a fixed split, leave the column out")
    return np.array([TASK_PARTS.index(one) for one in split], np.int8)


def _values(name: str, block: Block, column: str) -> list[str]:
    texts = pc.fill_null(text_of(name, block, column, or_numbers=column == LABEL), "")
    if pa.types.is_floating(block.columns[column].type) and pc.any(pc.match_substring(texts, ".")).as_py():
        raise UserError(f"{name}: column {column!r} holds fractions, which are not classes; name or write a column of labels")
    if column in (LABEL, SPLIT):
        # As labels of pairs: pandas writes 1.0 for 1.
        texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), r"^(-?\d+)\.0+$", r"\1")
    empty = pc.equal(stripped(texts), "").to_numpy(zero_copy_only=False)
    if empty.any():
        raise UserError(f"{name}: {block.place(int(empty.argmax()))}: {column} is empty; fill it in, or leave the row out")
    return texts.to_pylist()
