"""Rows for sentence operators, from files of any supported format.

| columns | rows of the file give |
|---|---|
| operation, a, target, and b for operations of two sentences | one row each, as they say |
| complex, split (two parts, `<::::>` between them: WikiSplit, BiSECT) | fusion of the parts; difference of whole and first part |
| sentence, compression (Google's) | compression |
| sentence1, sentence2 (paraphrases) | reconstruction of the second from the first |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.generated.operations import OPERATIONS, TWO_INPUTS, Operation, OperationRow
from pipeline.data.readers.convert import is_text
from pipeline.data.readers.formats import opened
from pipeline.data.readers.row_blocks import Block, listed, reading, shown
from pipeline.utils.errors import UserError

PARTS = "<::::>"
"""What divides the parts of a split sentence in WikiSplit and BiSECT."""
_OWN, _SPLIT, _COMPRESSION, _PARAPHRASE = (
    ("operation", "a", "target"),
    ("complex", "split"),
    ("sentence", "compression"),
    ("sentence1", "sentence2"),
)
_LAYOUTS = (_OWN, _SPLIT, _COMPRESSION, _PARAPHRASE)
_SECOND = "b"


def read_operations(path: Path, *, where: Mapping[str, str] | None = None) -> Iterator[tuple[OperationRow, ...]]:
    """What each row of a file gives, in order. The columns say which layout it has; white space within a sentence is one space.

    A row whose sentence is split into another number of parts than two gives nothing: an empty tuple.

    Args:
        where: column → value; rows with another value are left out.

    Raises:
        UserError: the file cannot be read, has none or several of the layouts, lacks a column or has one twice, or a value is
            missing or of another type; an operation is unknown, or has the wrong number of inputs.
    """
    name = str(path)
    where = where or {}
    if not path.is_file():
        raise UserError(f"{name}: {'is not a file; name a Parquet, csv or jsonl file' if path.exists() else 'no such file'}")
    with reading(name), opened(path.parent, path.name) as (table, _, _):
        layout, columns = _layout(name, list(table.columns), where)
        for block in table.blocks([*columns, *where]):
            kept = _selected(name, block, where)
            texts = {column: _texts(name, block, column, kept, may_miss=column == _SECOND) for column in columns}
            for row in kept:
                yield _rows(f"{name}: {block.place(row)}", layout, {column: texts[column][row] for column in columns})


def _layout(name: str, there: Sequence[str], where: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    fits = [layout for layout in _LAYOUTS if set(layout) <= set(there)]
    if len(fits) != 1:
        known = "; or ".join(" and ".join(layout) for layout in _LAYOUTS)
        raise UserError(f"{name}: needs the columns of one layout ({known}); it has {listed(there)}")
    columns = [*fits[0], *([_SECOND] if fits[0] == _OWN and _SECOND in there else [])]
    for column in (*columns, *where):
        if there.count(column) != 1:
            fault = "has more than one column" if column in there else "needs a column"
            raise UserError(f"{name}: {fault} {column}; it has {listed(there)}")
    return fits[0], columns


def _selected(name: str, block: Block, where: Mapping[str, str]) -> list[int]:
    kept = list(range(block.rows))
    for column, value in where.items():
        values = _texts(name, block, column, kept, may_miss=True)
        kept = [row for row in kept if values[row] == value]
    return kept


def _texts(name: str, block: Block, column: str, rows: Sequence[int], *, may_miss: bool) -> list[str | None]:
    """(block.rows,) the values; only those of `rows` are checked."""
    values = block.columns[column]
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (is_text(values.type) or (pa.types.is_null(values.type) and may_miss)):
        raise UserError(f"{name}: column {column} holds {values.type}; it must hold text")
    texts = [None if text is None else " ".join(text.split()) or None for text in pc.cast(values, pa.large_string()).to_pylist()]
    if not may_miss:
        for row in rows:
            if texts[row] is None:
                raise UserError(f"{name}: {block.place(row)}: {column} is empty; fill it in, or leave the row out")
    return texts


def _rows(place: str, layout: tuple[str, ...], values: Mapping[str, str | None]) -> tuple[OperationRow, ...]:
    first, second = (values[column] or "" for column in layout[:2])
    if layout == _SPLIT:
        parts = [part.strip() for part in second.split(PARTS)]
        if len(parts) != 2 or not all(parts):
            return ()
        a, b = parts
        return OperationRow("fusion", a, b, first), OperationRow("difference", first, a, b)
    if layout == _COMPRESSION:
        return (OperationRow("compression", first, None, second),)
    if layout == _PARAPHRASE:
        return (OperationRow("reconstruction", first, None, second),)
    operation = _operation(place, first)
    b = values.get(_SECOND)
    if (b is not None) != (operation in TWO_INPUTS):
        needs = "needs a second input: fill in" if operation in TWO_INPUTS else "has one input: leave empty"
        raise UserError(f"{place}: {operation} {needs} column {_SECOND}")
    return (OperationRow(operation, second, b, values["target"] or ""),)


def _operation(place: str, text: str) -> Operation:
    for operation in OPERATIONS:
        if text == operation:
            return operation
    raise UserError(f"{place}: operation is {shown(text)}; it must be {', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]}")
