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
from pipeline.data.readers.layouts import PairColumns, StsColumns, Wanted
from pipeline.data.readers.row_blocks import Block, listed, shown
from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NO_LABEL, RAW_PAIRS, RAW_STS
from pipeline.data.text_column import as_text, is_text, not_utf8
from pipeline.utils.errors import UserError

_NUMBER = r"^[+-]?([0-9][0-9.,]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SCORE = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SEEN_VALUES = 12


class Pairs:
    """Rows of pairs from the blocks of one file."""

    def __init__(self, name: str, file: Opened, columns: PairColumns, extra: Wanted, spec: PairSpec) -> None:
        sentences = {columns.premise, columns.hypothesis, columns.contradiction} - {None}
        self._file = Columns(name, file.stem, extra, spec.where, sentences)
        self._columns = columns
        self._fixed = ENTAILMENT if spec.fixed_label is None else LABELS.index(spec.fixed_label)
        self._labels, self._reverse = (
            LabelNames(spec.labels, file.class_names.get(column or "", ())) for column in (columns.label, columns.reverse_label)
        )

    def batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Schema `RAW_PAIRS`. A row with a contradiction gives two pairs, the entailment first."""
        file, columns = self._file, self._columns
        for block in blocks:
            arrays = [
                file.sentence(block, columns.premise),
                file.sentence(block, columns.hypothesis),
                self._codes(self._labels, block, columns.label, self._fixed),
                self._codes(self._reverse, block, columns.reverse_label, NO_LABEL),
                file.selected(block),
                file.source(block),
            ]
            batch = pa.record_batch(arrays, schema=RAW_PAIRS)
            if columns.contradiction is not None:
                batch = _with_contradictions(batch, file.sentence(block, columns.contradiction))
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)
        file.finish()

    def _codes(self, labels: LabelNames, block: Block, column: str | None, otherwise: int) -> pa.Array:
        """(n,) label codes of a column; without a column, all are `otherwise`."""
        if column is None:
            return pa.repeat(pa.scalar(otherwise, pa.int8()), block.rows)
        values = _decoded(block.columns[column])
        if not _is_number(values.type):
            values = self._file.text(block, column)
        return labels.codes(self._file.name, block, column, values)


def _with_contradictions(batch: pa.RecordBatch, contradiction: pa.Array) -> pa.RecordBatch:
    """Each pair, followed by its premise with the contradiction unless that is empty."""
    rows = batch.num_rows
    label = pa.repeat(pa.scalar(CONTRADICTION, pa.int8()), rows)
    others = batch.set_column(1, RAW_PAIRS.field(1), contradiction).set_column(2, RAW_PAIRS.field(2), label)
    order = np.arange(2 * rows).reshape(2, rows).T.reshape(-1)
    filled = np.append(np.ones(rows, bool), pc.not_equal(contradiction, "").to_numpy(zero_copy_only=False))
    return pa.concat_batches([batch, others]).take(pa.array(order[filled[order]]))


class Graded:
    """Rows of graded similarity from the blocks of one file."""

    def __init__(self, name: str, file: Opened, columns: StsColumns, extra: Wanted, spec: StsSpec) -> None:
        self._file = Columns(name, file.stem, extra, spec.where, {columns.sentence1, columns.sentence2})
        self._columns = columns

    def batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Schema `RAW_STS`."""
        file, columns = self._file, self._columns
        for block in blocks:
            arrays = [
                file.sentence(block, columns.sentence1),
                file.sentence(block, columns.sentence2),
                self._score(block),
                file.selected(block),
                file.source(block),
            ]
            yield pa.record_batch(arrays, schema=RAW_STS)
        file.finish()

    def _score(self, block: Block) -> pa.Array:
        name, column = self._file.name, self._columns.score
        values = _decoded(block.columns[column])
        if _is_number(values.type) and not pa.types.is_boolean(values.type):
            numbers = values.cast(pa.float64(), safe=False)
            wrong = pc.is_inf(numbers)
        else:
            values = pc.utf8_trim(self._file.text(block, column), characters=STRIPPED)
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
            fits = pc.match_substring_regex(values, _SCORE)
            numbers = pc.if_else(fits, values, pa.scalar(None, values.type)).cast(pa.float64())
            wrong = pc.or_(pc.invert(fits), pc.fill_null(pc.is_inf(numbers), False))
        row = _first(wrong)
        if row is not None:
            bad = shown(block.columns[column][row].as_py())
            raise UserError(
                f"{name}: {block.place(row)}: {column} is {bad}, not a number; correct it, or leave it empty for none"
            )
        return pc.fill_null(numbers, float("nan"))


class Columns:
    """The columns of one file, block by block: text, sentences, which rows are selected; `finish` checks the whole file."""

    def __init__(self, name: str, stem: str, extra: Wanted, where: Mapping[str, str], sentences: set[str]) -> None:
        self.name = name
        self._stem = stem
        self._where = where
        self._source = extra.source
        self._only_numbers = sentences
        """Text columns that contain only numbers so far."""
        self._numbers: dict[str, str] = {}
        """Text column → its first text."""
        self._values: dict[str, dict[str, None]] = {column: {} for column in where}
        self._rows = 0
        self._selected = not where

    def text(self, block: Block, column: str) -> pa.Array:
        """(n,) large_string, null as ''.

        Raises:
            UserError: the column is not text, or a value is not valid UTF-8 or contains NUL.
        """
        text = pc.fill_null(text_of(self.name, block, column), "")
        row = _first(pc.match_substring(text, "\0"))
        if row is not None:
            raise UserError(f"{self.name}: {block.place(row)}: column {column!r} contains a NUL character; remove it")
        return text

    def sentence(self, block: Block, column: str) -> pa.Array:
        """(n,) string, stripped."""
        text = pc.utf8_trim(self.text(block, column), characters=STRIPPED)
        if column in self._only_numbers:
            filled = text.filter(pc.not_equal(text, ""))
            if len(filled):
                self._numbers.setdefault(column, filled[0].as_py())
                if not pc.all(pc.match_substring_regex(filled, _NUMBER)).as_py():
                    self._only_numbers.discard(column)
        return text.cast(pa.string())

    def selected(self, block: Block) -> pa.Array:
        """(n,) whether all columns of `where` have the wanted values."""
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
        alone = pa.repeat(pa.scalar(self._stem, pa.large_string()), block.rows)
        if self._source is None or not is_text(block.columns[self._source].type):
            return alone.cast(pa.string())
        missing = pc.is_null(as_text(block.columns[self._source]))
        named = pc.binary_join_element_wise(alone, self.text(block, self._source), pa.scalar(":", pa.large_string()))
        return pc.if_else(missing, alone, named).cast(pa.string())

    def finish(self) -> None:
        """Check what only the whole file shows.

        Raises:
            UserError: there are no rows, a text column contains only numbers, or `where` selects no row.
        """
        if self._rows == 0:
            raise UserError(f"{self.name}: has no rows; get or write it again")
        for column in sorted(self._only_numbers & self._numbers.keys()):
            raise UserError(
                f"{self.name}: column {column!r} holds only numbers (the first is {shown(self._numbers[column])}), "
                "not sentences; name the column of text"
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
