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

from pipeline.config.data_params import NO_FORM, TableSpec
from pipeline.data.cleaning import STRIPPED
from pipeline.data.readers.columns import Columns, require_columns
from pipeline.data.readers.formats import open_table
from pipeline.data.readers.row_blocks import Block, listed, reading, shown
from pipeline.data.schema import OPERATIONS, TWO_INPUTS
from pipeline.families.operations.generated import OperationRow
from pipeline.utils.errors import UserError

PARTS = "<::::>"
"""What divides the parts of a split sentence in WikiSplit and BiSECT."""
_LAYOUTS = (("operation", "a", "target"), ("complex", "split"), ("sentence", "compression"), ("sentence1", "sentence2"))
_OWN, _SPLIT, _COMPRESSION, _PARAPHRASE = _LAYOUTS


def read_operations(path: Path, *, where: Mapping[str, str], form: TableSpec = NO_FORM) -> Iterator[tuple[OperationRow, ...]]:
    """What each row of a file gives, in order. The columns say which layout it has; white space within a sentence is one space.

    A row whose sentence is split into another number of parts than two gives nothing: an empty tuple.

    Args:
        where: column → value; rows with another value are left out.

    Raises:
        UserError: the file cannot be read, has none or several of the layouts, lacks a column or has one twice, or has no row, or
            none that `where` asks for; a value is missing or of another type; or an operation is unknown, or has too few or too
            many inputs.
    """
    name = str(path)
    if not path.is_file():
        raise UserError(f"{name}: {'is not a file; name a Parquet, csv or jsonl file' if path.exists() else 'no such file'}")
    with reading(name):
        source = open_table(path.parent, path.name, form)
        layout, columns = _layout(name, source.columns, where)
        file = Columns(name, source, where)
        for block in source.blocks(list(dict.fromkeys((*columns, *where)))):
            texts = {column: [" ".join(text.split()) for text in file.sentence(block, column).to_pylist()] for column in columns}
            for row, selected in enumerate(file.selected(block).to_pylist()):
                if selected:
                    yield _rows(name, block, row, layout, {column: texts[column][row] for column in columns})
        file.finish()


def _layout(name: str, columns: Sequence[str], where: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    """The layout of a file with these columns, and the columns to read."""
    fits = [layout for layout in _LAYOUTS if set(layout) <= set(columns)]
    if len(fits) != 1:
        known = "; or ".join(" and ".join(layout) for layout in _LAYOUTS)
        raise UserError(f"{name}: needs the columns of one layout ({known}); it has {listed(columns)}")
    if fits[0] == _PARAPHRASE and not where and (label := next((name for name in columns if "label" in name), None)):
        # Such files also have pairs that are not paraphrases.
        raise UserError(f"{name}: column {label!r} may say which pairs are paraphrases; name its value with where (params.yaml)")
    wanted = [*fits[0], *(["b"] if fits[0] == _OWN and "b" in columns else [])]
    require_columns(name, (*wanted, *where), columns)
    return fits[0], wanted


def _rows(name: str, block: Block, row: int, layout: tuple[str, ...], values: Mapping[str, str]) -> tuple[OperationRow, ...]:
    place = f"{name}: {block.place(row)}"
    for column in layout:
        if not values[column]:
            raise UserError(f"{place}: {column} is empty; fill it in, or leave the row out")
    first, second = (values[column] for column in layout[:2])
    if layout == _SPLIT:
        parts = [part.strip(STRIPPED) for part in second.split(PARTS)]
        if len(parts) != 2 or not all(parts):
            return ()
        a, b = parts
        return OperationRow("fusion", a, b, first), OperationRow("difference", first, a, b)
    if layout == _COMPRESSION:
        return (OperationRow("compression", first, None, second),)
    if layout == _PARAPHRASE:
        return (OperationRow("reconstruction", first, None, second),)
    if first not in OPERATIONS:
        raise UserError(f"{place}: operation is {shown(first)}; it must be {', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]}")
    operation = OPERATIONS[OPERATIONS.index(first)]
    other = values.get("b") or None
    if (other is not None) != (operation in TWO_INPUTS):
        needs = "needs a second input: fill in" if operation in TWO_INPUTS else "has one input: leave empty"
        raise UserError(f"{place}: {operation} {needs} column b")
    return (OperationRow(operation, second, other, values["target"]),)
