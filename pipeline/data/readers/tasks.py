"""Labelled texts for a classifier, from a file of any supported format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.readers.formats import opened
from pipeline.data.readers.row_blocks import Block, listed, reading, shown
from pipeline.utils.errors import UserError

LABEL, SPLIT = "label", "split"
TEXTS = (("text",), ("sentence1", "sentence2"))
"""Columns of the texts: one to a row, or two."""
TRAIN, DEV, TEST = "train", "dev", "test"


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
    split: NDArray[np.str_] | None
    """(n,) of train, dev or test; None if the file has no such column."""


def read_task(path: Path) -> Task:
    """Read a file with columns text, or sentence1 and sentence2; label; and, if the data have a fixed split, split.

    Raises:
        UserError: the file cannot be read, lacks a column, or has an empty value; it has one class only, or `split` has other
            values than train, dev and test, or lacks train or test.
    """
    name = path.name
    with reading(name), opened(path.parent, name) as (table, _, _):
        there = table.columns
        texts = next((columns for columns in TEXTS if set(columns) <= set(there)), None)
        if texts is None or LABEL not in there:
            raise UserError(
                f"{path}: needs a column {LABEL}, and text or sentence1 and sentence2 (and split, if there is one); "
                f"it has {listed(there)}"
            )
        wanted = [*texts, LABEL, *([SPLIT] if SPLIT in there else [])]
        found: dict[str, list[str]] = {column: [] for column in wanted}
        for block in table.blocks(wanted):
            for column in wanted:
                found[column] += _values(path, block, column)
    classes, label = np.unique(np.array(found[LABEL], dtype=object).astype(str), return_inverse=True)
    if len(classes) < 2:
        raise UserError(
            f"{path}: {'all rows have one label' if len(classes) else 'has no rows'}; a task needs two labels or more"
        )
    split = np.array(found[SPLIT]) if SPLIT in found else None
    if split is not None:
        strange = sorted(set(split.tolist()) - {TRAIN, DEV, TEST})
        if strange:
            raise UserError(f"{path}: split is {shown(strange[0])}; it must be {TRAIN}, {DEV} or {TEST}")
        for part in (TRAIN, TEST):
            if not (split == part).any():
                raise UserError(f"{path}: no row has split {part}; without a fixed split, leave the column out")
    return Task(
        path.name.partition(".")[0], tuple(found[column] for column in texts), label.astype(np.int64), tuple(classes), split
    )


def _values(path: Path, block: Block, column: str) -> list[str]:
    values = block.columns[column]
    if column == LABEL and (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        values = values.cast(pa.string())
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise UserError(f"{path}: column {column} holds {values.type}, not text")
    texts: list[str | None] = values.to_pylist()
    for row, text in enumerate(texts):
        if text is None or not text.strip():
            raise UserError(f"{path}: {block.place(row)}: {column} is empty; fill it in, or leave the row out")
    return [text for text in texts if text is not None]
