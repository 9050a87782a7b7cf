"""Blocks of a file → batches of the raw schemas. Errors name the row of a wrong value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.data_params import PairSpec, StsSpec
from pipeline.data.cleaning import STRIPPED
from pipeline.data.readers.formats import Opened
from pipeline.data.readers.labels import LabelNames
from pipeline.data.readers.layouts import SOURCE, PairColumns, StsColumns
from pipeline.data.readers.row_blocks import Block, listed, shown
from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NO_LABEL, RAW_PAIRS, RAW_STS
from pipeline.data.text_column import as_text, is_text, not_utf8
from pipeline.utils.errors import UserError

_NUMBER = r"^[+-]?([0-9][0-9.,]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SCORE = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SEEN_VALUES = 12


def pair_batches(file: Columns, blocks: Iterable[Block], columns: PairColumns, spec: PairSpec) -> Iterator[pa.RecordBatch]:
    """Rows of pairs in schema `RAW_PAIRS`. A row with a contradiction gives two pairs, the entailment first."""
    fixed = ENTAILMENT if spec.fixed_label is None else LABELS.index(spec.fixed_label)
    labels, reverse = (
        LabelNames(spec.labels, file.class_names.get(column or "", ())) for column in (columns.label, columns.reverse_label)
    )
    for block in blocks:
        arrays = [
            file.sentence(block, columns.premise),
            file.sentence(block, columns.hypothesis),
            file.codes(labels, block, columns.label, fixed),
            file.codes(reverse, block, columns.reverse_label, NO_LABEL),
            file.selected(block),
            file.source(block),
        ]
        batch = pa.record_batch(arrays, schema=RAW_PAIRS)
        if columns.contradiction is not None:
            batch = _with_contradictions(batch, file.sentence(block, columns.contradiction))
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)
    file.finish()


def graded_batches(file: Columns, blocks: Iterable[Block], columns: StsColumns, spec: StsSpec) -> Iterator[pa.RecordBatch]:
    """Rows of graded similarity in schema `RAW_STS`."""
    for block in blocks:
        sentences = [file.sentence(block, column) for column in (columns.sentence1, columns.sentence2)]
        arrays = [*sentences, file.score(block, columns.score), file.selected(block), file.source(block)]
        yield pa.record_batch(arrays, schema=RAW_STS)
    file.finish()


def _with_contradictions(batch: pa.RecordBatch, contradiction: pa.Array) -> pa.RecordBatch:
    """Each pair, followed by its premise with the contradiction unless that is empty."""
    rows = batch.num_rows
    label = pa.repeat(pa.scalar(CONTRADICTION, pa.int8()), rows)
    others = batch.set_column(1, RAW_PAIRS.field(1), contradiction).set_column(2, RAW_PAIRS.field(2), label)
    order = np.arange(2 * rows).reshape(2, rows).T.reshape(-1)
    filled = np.append(np.ones(rows, bool), pc.not_equal(contradiction, "").to_numpy(zero_copy_only=False))
    return pa.concat_batches([batch, others]).take(pa.array(order[filled[order]]))


class Columns:
    """The columns of one file, block by block, as arrays of the raw schemas; `finish` checks the whole file."""

    def __init__(self, name: str, file: Opened, where: Mapping[str, str]) -> None:
        self.name = name
        self.class_names = file.class_names
        self._stem = file.stem
        self._where = where
        self._numbers: dict[str, str | None] = {}
        """Column of sentences → its first text, as long as all its texts are numbers; then None."""
        self._values: dict[str, dict[str, None]] = {column: {} for column in where}
        self._rows = 0
        self._selected = not where

    def text(self, block: Block, column: str) -> pa.Array:
        """(n,) large_string, null as ''.

        Raises:
            UserError: the column is not text, or a value is not valid UTF-8 or contains NUL.
        """
        text = pc.fill_null(text_of(self.name, block, column), "")
        if (row := _first(pc.match_substring(text, "\0"))) is not None:
            raise UserError(f"{self.name}: {block.place(row)}: column {column!r} contains a NUL character; remove it")
        return text

    def sentence(self, block: Block, column: str) -> pa.Array:
        """(n,) string, stripped."""
        text = pc.utf8_trim(self.text(block, column), characters=STRIPPED)
        first = self._numbers.get(column, "")
        if first is not None and len(filled := text.filter(pc.not_equal(text, ""))):
            only_numbers = pc.all(pc.match_substring_regex(filled, _NUMBER)).as_py()
            self._numbers[column] = (first or filled[0].as_py()) if only_numbers else None
        return text.cast(pa.string())

    def codes(self, labels: LabelNames, block: Block, column: str | None, otherwise: int) -> pa.Array:
        """(n,) label codes of a column; without a column, all are `otherwise`."""
        if column is None:
            return pa.repeat(pa.scalar(otherwise, pa.int8()), block.rows)
        values = _decoded(block.columns[column])
        return labels.codes(self.name, block, column, values if _is_number(values.type) else self.text(block, column))

    def score(self, block: Block, column: str) -> pa.Array:
        """(n,) numbers, NaN where there is none.

        Raises:
            UserError: a value is not a finite number.
        """
        values = _decoded(block.columns[column])
        if _is_number(values.type) and not pa.types.is_boolean(values.type):
            numbers = values.cast(pa.float64(), safe=False)
            wrong = pc.is_inf(numbers)
        else:
            values = pc.utf8_trim(self.text(block, column), characters=STRIPPED)
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
            fits = pc.match_substring_regex(values, _SCORE)
            numbers = pc.if_else(fits, values, pa.scalar(None, values.type)).cast(pa.float64())
            wrong = pc.or_(pc.invert(fits), pc.fill_null(pc.is_inf(numbers), False))
        if (row := _first(wrong)) is not None:
            bad = shown(block.columns[column][row].as_py())
            raise UserError(
                f"{self.name}: {block.place(row)}: {column} is {bad}, not a number; correct it, or leave it empty for none"
            )
        return pc.fill_null(numbers, float("nan"))

    def selected(self, block: Block) -> pa.Array:
        """(n,) true where all columns of `where` have the wanted values."""
        self._rows += block.rows
        chosen = pa.repeat(pa.scalar(True), block.rows)
        for column, value in self._where.items():
            text = pc.fill_null(text_of(self.name, block, column, or_numbers=True), "")
            text = pc.utf8_trim(text, characters=STRIPPED)
            seen = self._values[column]
            if len(seen) < _SEEN_VALUES:
                seen.update(dict.fromkeys(pc.unique(text).to_pylist()[:_SEEN_VALUES]))
            chosen = pc.and_(chosen, pc.equal(text, value))
        self._selected = self._selected or bool(pc.any(chosen).as_py())
        return chosen

    def source(self, block: Block) -> pa.Array:
        """(n,) the file's stem, followed by `:value` if the file has a text column `source` with a value."""
        stem = pa.repeat(pa.scalar(self._stem, pa.large_string()), block.rows)
        values = block.columns.get(SOURCE)
        if values is None or not is_text(values.type):
            return stem.cast(pa.string())
        named = pc.binary_join_element_wise(stem, self.text(block, SOURCE), pa.scalar(":", pa.large_string()))
        return pc.if_else(pc.is_null(as_text(values)), stem, named).cast(pa.string())

    def finish(self) -> None:
        """Check what only the whole file shows.

        Raises:
            UserError: there are no rows, a text column contains only numbers, or `where` selects no row.
        """
        if self._rows == 0:
            raise UserError(f"{self.name}: has no rows; get or write it again")
        for column, first in sorted(self._numbers.items()):
            if first is not None:
                raise UserError(
                    f"{self.name}: column {column!r} holds only numbers (the first is {shown(first)}), not sentences; "
                    "name the column of text"
                )
        if not self._selected:
            conditions = ", ".join(f"{column}: {value}" for column, value in self._where.items())
            contents = "; ".join(f"{column} has {listed(sorted(values))}" for column, values in self._values.items())
            raise UserError(f"{self.name}: no row has {conditions} ({contents}); correct where in params.yaml")


def text_of(name: str, block: Block, column: str, *, or_numbers: bool = False) -> pa.Array:
    """(n,) large_string with its nulls.

    Args:
        name: name of the file, for messages.
        block: n rows.
        column: the column.
        or_numbers: accept numbers, too. As text, 1.0 is 1: pandas makes whole numbers floats where a value is missing. NaN
            is a missing value.

    Raises:
        UserError: the column is not text, or a value is not valid UTF-8.
    """
    values = _decoded(block.columns[column])
    if or_numbers and _is_number(values.type):
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        return values.cast(pa.large_string())
    if not is_text(values.type):
        raise UserError(f"{name}: column {column!r} holds {values.type}, not text; name or write a column of text")
    text = as_text(values)
    if (row := not_utf8(text)) is not None:
        raise UserError(f"{name}: {block.place(row)}: column {column!r} is not valid UTF-8; write the file again as UTF-8")
    return text


def _is_number(kind: pa.DataType) -> bool:
    """True for a type of numbers, or of true and false."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _decoded(values: pa.Array) -> pa.Array:
    """The values of a dictionary, unless they are text; any other array as it is."""
    is_coded = pa.types.is_dictionary(values.type) and not is_text(values.type)
    return values.dictionary_decode() if is_coded else values


def _first(wrong: pa.Array) -> int | None:
    """Position of the first true value; None if there is none."""
    index = pc.index(wrong, pa.scalar(True)).as_py()
    return None if index < 0 else index
