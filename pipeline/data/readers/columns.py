"""The columns of a file: which of them hold what, and their values as arrays of the raw schemas. Errors name the row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.data_params import FileSpec, HubSpec, PairSpec, StsSpec
from pipeline.config.types import label_key
from pipeline.data.cleaning import STRIPPED, stripped
from pipeline.data.readers.row_blocks import Block, Table, listed, shown
from pipeline.data.schema import BATCH_ROWS, CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL, RAW_PAIRS, RAW_STS
from pipeline.data.text_column import as_text, is_text, not_utf8
from pipeline.utils.errors import UserError

SOURCE = "source"
"""A column of text whose values are added to the `source` of the rows."""
_MOST_CHARACTERS = 100_000
_NUMBER = r"^[+-]?([0-9][0-9.,]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SCORE = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class PairColumns(NamedTuple):
    """Names of the columns of a file of pairs."""

    premise: str
    hypothesis: str
    label: str | None
    reverse_label: str | None = None
    contradiction: str | None = None


PAIR_LAYOUTS = (
    PairColumns("premise", "hypothesis", "label", "entailment_ba"),
    # SNLI and MultiNLI, jsonl and txt.
    PairColumns("sentence1", "sentence2", "gold_label"),
    # SICK.txt; SICK_train, SICK_trial and SICK_test_annotated; SICK on the hub.
    PairColumns("sentence_A", "sentence_B", "entailment_label", "entailment_BA"),
    PairColumns("sentence_A", "sentence_B", "entailment_judgment"),
    PairColumns("sentence_A", "sentence_B", "label", "entailment_BA"),
    # SNLI as csv; GLUE.
    PairColumns("sentence1", "sentence2", "similarity"),
    PairColumns("sentence1", "sentence2", "label"),
)
"""Known layouts of pairs, recognised by column names; `reverse_label` is used only if the file has that column."""
STS_LAYOUTS = (
    ("sentence1", "sentence2", "score"),
    ("sentence_A", "sentence_B", "relatedness_score"),
    ("premise", "hypothesis", "relatedness_score"),
)

KNOWN_LABELS = (
    {name: code for code, name in enumerate(LABELS)}
    | {"": NO_LABEL, "-": NO_LABEL}
    | {"a_entails_b": ENTAILMENT, "a_neutral_b": NEUTRAL, "a_contradicts_b": CONTRADICTION}
    | {"b_entails_a": ENTAILMENT, "b_neutral_a": NEUTRAL, "b_contradicts_a": CONTRADICTION}
)
"""Names that need no mapping, in lower case, including the official spellings of SNLI, MultiNLI and SICK."""


def pair_columns(name: str, spec: FileSpec | HubSpec, file: Table) -> PairColumns:
    """The columns of pairs: those named in `spec`; for the others, those of the one layout that fits.

    Args:
        name: name of the file, for messages.
        spec: the entry in params.yaml.
        file: the open file.

    Raises:
        UserError: no layout or several layouts fit; a column is missing or occurs twice, or is named for two roles.
    """
    is_labelled = spec.contradiction is None and spec.fixed_label is None
    keys = ("premise", "hypothesis", "label")[: 3 if is_labelled else 2]
    layouts = [layout[: len(keys)] for layout in PAIR_LAYOUTS]
    names = _resolved(name, {key: getattr(spec, key) for key in keys}, layouts, file)
    columns = PairColumns(names[0], names[1], None, None, spec.contradiction)
    if is_labelled:
        # Only of the layout whose columns are all in use: with swapped sentences, the reverse label would be swapped, too.
        back = (layout.reverse_label for layout in PAIR_LAYOUTS if layout[:3] == names)
        reverse = spec.reverse_label or next((column for column in back if column in file.columns), None)
        columns = columns._replace(label=names[2], reverse_label=reverse)
    return columns


def sts_columns(name: str, spec: StsSpec, file: Table) -> tuple[str, ...]:
    """Like `pair_columns`, for graded similarity."""
    return _resolved(name, {key: getattr(spec, key) for key in STS_LAYOUTS[0]}, STS_LAYOUTS, file)


def require_columns(name: str, columns: Sequence[str | None], available: Sequence[str], different: bool = False) -> None:
    """Check that a file has each of these columns, and only once; None means no column.

    Args:
        name: name of the file, for messages.
        columns: those that are read.
        available: all columns of the file.
        different: no column may be read for two things.

    Raises:
        UserError: it does not.
    """
    for column in columns:
        count = 1 if column is None else list(available).count(column)
        if count != 1:
            fault = "no column" if count == 0 else "more than one column"
            raise UserError(f"{name}: {fault} {column!r}; it has {listed(available)}: name another, or rename one in the file")
        if different and column is not None and columns.count(column) > 1:
            raise UserError(f"{name}: column {column!r} is used for two things; name a column for each in params.yaml")


def _resolved(
    name: str, given: Mapping[str, str | None], layouts: Sequence[tuple[str | None, ...]], file: Table
) -> tuple[str, ...]:
    fits: list[tuple[str, ...]] = []
    for layout in layouts:
        names = tuple(own or str(known) for own, known in zip(given.values(), layout, strict=True))
        # A column that params.yaml names is checked later: a message about it says more than one about layouts.
        if names not in fits and all(column in file.columns or column in given.values() for column in names):
            fits.append(names)
    if len(fits) == 1:
        return fits[0]
    remedy = f"name {', '.join(given)} in params.yaml"
    if not fits:
        without = "; without labels, contradiction or fixed_label" if "label" in given else ""
        raise UserError(f"{name}: no known layout; it has the columns {listed(file.columns)}: {remedy}{without}")
    several = " or ".join("(" + ", ".join(fit) + ")" for fit in fits)
    raise UserError(f"{name}: its columns can be read in several ways, {several}: {remedy}")


def pair_batches(file: Columns, blocks: Iterable[Block], columns: PairColumns, spec: PairSpec) -> Iterator[pa.RecordBatch]:
    """Rows of pairs in schema `RAW_PAIRS`. A row with a contradiction gives two pairs, the entailment first."""
    fixed = ENTAILMENT if spec.fixed_label is None else LABELS.index(spec.fixed_label)
    for block in blocks:
        arrays = [
            file.sentence(block, columns.premise),
            file.sentence(block, columns.hypothesis),
            file.codes(block, columns.label, spec, fixed),
            file.codes(block, columns.reverse_label, spec, NO_LABEL),
            file.selected(block),
            file.source(block),
        ]
        batch = pa.record_batch(arrays, schema=RAW_PAIRS)
        if columns.contradiction is not None:
            batch = _with_contradictions(batch, file.sentence(block, columns.contradiction))
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)
    file.finish()


def graded_batches(file: Columns, blocks: Iterable[Block], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of graded similarity in schema `RAW_STS`."""
    for block in blocks:
        sentences = [file.sentence(block, column) for column in columns[:2]]
        arrays = [*sentences, file.score(block, columns[2]), file.selected(block), file.source(block)]
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


@dataclass(slots=True)
class Seen:
    """What was seen of a file, or of a part of it, for the checks of the whole file."""

    rows: int = 0
    numbers: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Column of sentences → its first text, as long as all its texts are numbers; then None."""
    selected: bool = False
    """Whether a row has the values of `where`."""

    def add(self, later: Seen) -> None:
        """Add what was seen of the next part of the file."""
        self.rows += later.rows
        self.selected |= later.selected
        for column, first in later.numbers.items():
            self.numbers[column] = None if first is None else self.numbers.get(column, first)

    def check(self, name: str, where: Mapping[str, str]) -> None:
        """Check what only the whole file shows.

        Raises:
            UserError: there are no rows, a text column contains only numbers, or `where` selects no row.
        """
        if self.rows == 0:
            raise UserError(f"{name}: has no rows; get or write it again")
        for column, first in sorted(self.numbers.items()):
            if first is not None:
                raise UserError(f"{name}: column {column!r} holds only numbers ({shown(first)}, …); name the column of text")
        if where and not self.selected:
            conditions = ", ".join(f"{column}: {value}" for column, value in where.items())
            raise UserError(f"{name}: no row has {conditions}; correct where in params.yaml")


class Columns:
    """The columns of one file, block by block, as arrays of the raw schemas; `finish` checks the whole file.

    Args:
        part: where to note what was seen if this is only a part of the file, so that `finish` checks nothing.
    """

    def __init__(self, name: str, file: Table, where: Mapping[str, str], part: Seen | None = None) -> None:
        self.name = name
        self._file = file
        self._where = where
        self._whole, self._seen = part is None, part or Seen()

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
        """(n,) string, stripped.

        Raises:
            UserError: as for `text`; or one is too long to be a sentence.
        """
        text = stripped(self.text(block, column))
        if (row := _first(pc.greater(pc.utf8_length(text), _MOST_CHARACTERS))) is not None:
            raise UserError(
                f"{self.name}: {block.place(row)}: column {column!r} has {len(text[row].as_py()):,} characters; a sentence has "
                f"at most {_MOST_CHARACTERS:,}, and a model reads a few hundred tokens of it; shorten the text"
            )
        first = self._seen.numbers.get(column, "")
        if first is not None and len(filled := text.filter(pc.not_equal(text, ""))):
            only_numbers = pc.all(pc.match_substring_regex(filled, _NUMBER)).as_py()
            self._seen.numbers[column] = (first or filled[0].as_py()) if only_numbers else None
        return text.cast(pa.string())

    def codes(self, block: Block, column: str | None, spec: PairSpec, otherwise: int) -> pa.Array:
        """(n,) int8 positions in `LABELS`, or `NO_LABEL`; without a column, all are `otherwise`.

        Names in `spec.labels` take precedence over the known ones. A number means the same as its name in a ClassLabel column,
        where -1 means no label. Only distinct values are handled one by one; 1.0 is the name 1.

        Raises:
            UserError: a value is not a known name.
        """
        if column is None:
            return pa.repeat(pa.scalar(otherwise, pa.int8()), block.rows)
        own = {label_key(name): NO_LABEL if label == "none" else LABELS.index(label) for name, label in spec.labels.items()}
        classes = [label_key(name) for name in self._file.class_names.get(column, ())]
        names = KNOWN_LABELS | own
        numbers = {str(number): names[key] for number, key in enumerate(classes) if key in names}
        known = KNOWN_LABELS | ({"-1": NO_LABEL} if classes else {}) | numbers | own
        values = _decoded(block.columns[column])
        encoded = (values if _is_number(values.type) else self.text(block, column)).dictionary_encode()
        # Null and NaN mean no label.
        labels = ["" if isinstance(value, float) and isnan(value) else str(value) for value in encoded.dictionary.to_pylist()]
        codes = np.array([known.get(label_key(label), len(LABELS)) for label in (*labels, "")], dtype=np.int8)
        found = codes[pc.fill_null(encoded.indices, len(labels)).to_numpy(zero_copy_only=False).astype(np.intp)]
        if (bad := _first(pa.array(found == len(LABELS)))) is not None:
            label = shown(labels[encoded.indices[bad].as_py()])
            expected = f"labels are {', '.join(LABELS)}, and '', '-' or null for none"
            raise UserError(f"{self.name}: {block.place(bad)}: {column} is {label}; {expected}: correct it, or set labels")
        return pa.array(found)

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
            raise UserError(f"{self.name}: {block.place(row)}: {column} is {bad}, not a number; correct or empty it")
        return pc.fill_null(numbers, float("nan"))

    def selected(self, block: Block) -> pa.Array:
        """(n,) true where all columns of `where` have the wanted values."""
        self._seen.rows += block.rows
        chosen = pa.repeat(pa.scalar(True), block.rows)
        for column, value in self._where.items():
            text = pc.fill_null(text_of(self.name, block, column, or_numbers=True), "")
            text = pc.utf8_trim(text, characters=STRIPPED)
            chosen = pc.and_(chosen, pc.equal(text, value))
        self._seen.selected |= bool(pc.any(chosen).as_py())
        return chosen

    def source(self, block: Block) -> pa.Array:
        """(n,) the file's stem, followed by `:value` if the file has a text column `source` with a value."""
        stem = pa.repeat(pa.scalar(self._file.stem, pa.large_string()), block.rows)
        values = block.columns.get(SOURCE)
        if values is None or not is_text(values.type):
            return stem.cast(pa.string())
        named = pc.binary_join_element_wise(stem, self.text(block, SOURCE), pa.scalar(":", pa.large_string()))
        return pc.if_else(pc.is_null(as_text(values)), stem, named).cast(pa.string())

    def finish(self) -> None:
        """`Seen.check`, if this is the whole file."""
        if self._whole:
            self._seen.check(self.name, self._where)


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
