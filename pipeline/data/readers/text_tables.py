"""Text files → tables: csv and tab-separated files, and jsonl."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from pipeline.config.data_params import TableSpec
from pipeline.data.readers.opening import LONE_RETURN, MOST_CHARACTERS, LineFault, lines, without_return
from pipeline.data.readers.row_blocks import Record, Table, place, shown, text_blocks, warn_once
from pipeline.utils.errors import UserError, first_line

_ANNOTATION = re.compile(r"label\d+\Z")
_CLOSE = 'close every quote ("); a quote in a field is written twice, and the field is in quotes'
# What separates columns in practice. Other signs may be part of the name of the only column.
_NOT_NAMES = re.compile(r"[;|^~\x00-\x08\x0e-\x1f]")
# Quotes around a field, and in it only doubled ones, or such with a backslash before them.
_WRAPPED = re.compile(r'"(?:[^"\\]|""|\\.)*"', re.DOTALL)
# A quote that is not the first character of its field encloses nothing.
_LATE_QUOTE = re.compile(r'\s+"')
_SAY_CSV = "for this file in params.yaml set quotes: csv, or quotes: none if they belong to the text"

# For the whole process: the default would refuse a field of 131,073 characters.
csv.field_size_limit(MOST_CHARACTERS)
_R = TypeVar("_R", str, list[str])


def csv_table(name: str, blocks: Iterable[bytes], separator: str, form: TableSpec) -> Table:
    """A csv or tab-separated file with a header line: with quotes as in csv (RFC 4180), or without, where they are text.

    Args:
        name: the file's name, for messages.
        separator: the character between two fields.
        form: what params.yaml says of the file.

    Raises:
        UserError: the header looks as if another character separates the columns, or as if it was quoted.
    """
    quoted = form.quotes == "csv" or (form.quotes is None and separator != "\t")
    looks = None if quoted or form.quotes else _LooksQuoted(name)
    records = _filled(_records(lines(blocks), separator, quoted))
    _, header = next(records, (1, list[str]()))
    columns = [column.strip() for column in header]
    if len(header) == 1 and not form.separator and (other := _NOT_NAMES.search(header[0])):
        remedy = f"set separator: {json.dumps(other[0])} for this file in params.yaml"
        raise UserError(f"{name}: line 1: {other[0]!r} is between the columns, not a comma or a tab; {remedy}")
    if looks is not None:
        looks.see(place(0, 1), header, header)
        looks.finish()
    # The last columns of SNLI and MultiNLI are the labels of single annotators; rows may end early if labels are missing.
    least = len(columns)
    while separator == "\t" and least > 1 and _ANNOTATION.match(columns[least - 1]):
        least -= 1

    def rows(wanted: Sequence[str]) -> Iterator[Record]:
        indices = [columns.index(column) for column in wanted]
        for row, (line, fields) in enumerate(records, 1):
            if not least <= len(fields) <= len(columns):
                quotes = ", or set quotes: csv if quotes enclose a field" if looks else ""
                raise LineFault(line, f"{len(fields)} fields where the header has {len(columns)}; correct the row{quotes}")
            values = [fields[i] for i in indices]
            if looks is not None:
                looks.see(place(row, line), values, fields)
            elif quoted and (late := next((value for value in values if _LATE_QUOTE.match(value)), None)):
                raise LineFault(line, f"{shown(late)} has a quote after a blank, where csv reads it as text; remove the blank")
            yield Record(values, line, sum(map(len, fields)))
        if looks is not None:
            looks.finish()

    return Table(columns=columns, blocks=lambda wanted: text_blocks(name, wanted, rows(wanted)))


def json_table(name: str, blocks: Iterable[bytes]) -> Table:
    """A jsonl file, one object per line; the keys of the first object are the columns."""
    records = _filled((number, line.strip()) for number, line in enumerate(lines(blocks), 1))
    objects = ((number, _object(line, number), len(line)) for number, line in records)
    first = next(objects, None)

    def rows(wanted: Sequence[str]) -> Iterator[Record]:
        for line, values, size in chain([first] if first else [], objects):
            for column in wanted:
                if column not in values:
                    raise LineFault(line, f"no key {column!r}, which row 1 has; add it (null for none)")
            yield Record([values[column] for column in wanted], line, size)

    return Table(columns=list(first[1]) if first else [], blocks=lambda wanted: text_blocks(name, wanted, rows(wanted)))


class _LooksQuoted:
    """The evidence that a csv writer put the text of a file in quotes, where quotes are read as characters.

    A csv writer puts every field that has a quote into quotes, so one field with a quote elsewhere shows that the file was not
    written so, as in the official files of SNLI, MultiNLI and SICK.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # The first field in quotes, and the first that has quotes inside them.
        self._first = self._first_doubled = ""
        self._has_others = False

    def see(self, where: str, values: Sequence[str], fields: Sequence[str]) -> None:
        """Look at a row: the values that are read, and all its fields."""
        for value in values:
            if '"' in value and _WRAPPED.fullmatch(value):
                found = f"{where}: {shown(value)}"
                self._first = self._first or found
                if '"' in value[1:-1]:
                    self._first_doubled = self._first_doubled or found
        self._has_others = self._has_others or any('"' in field and not _WRAPPED.fullmatch(field) for field in fields)

    def finish(self) -> None:
        """Decide on the rows so far. Prints one line if some are quoted and others show that the file is not.

        Raises:
            UserError: all text with quotes looks quoted.
        """
        # Next to text that is certainly not quoted, quotes around a whole sentence may be its own.
        found = self._first_doubled if self._has_others else self._first
        fault = f"{self._name}: {found} looks quoted by a csv writer, but quotes are read as text here"
        if found and not self._has_others:
            raise UserError(f"{fault}; {_SAY_CSV}")
        if found:
            warn_once(f"{fault}, because other fields have quotes inside; {_SAY_CSV}")


def _filled(records: Iterable[tuple[int, _R]]) -> Iterator[tuple[int, _R]]:
    """(First line, content) of records without the empty ones at the end of a file; one between others is a `LineFault`."""
    blank = None
    for line, record in records:
        if not record:
            blank = blank or line
        elif blank is not None:
            raise LineFault(blank, "an empty line between rows; remove it")
        else:
            yield line, record


def _records(source: Iterable[str], separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """(First line, fields) of the records of a csv file."""
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader((f"{line}\n" for line in source), delimiter=separator, quoting=quoting, strict=True)
    start = 1
    try:
        for fields in reader:
            yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        # The module calls a carriage return a new line.
        what = LONE_RETURN if "new-line" in str(error) else f"not csv ({first_line(error)}); {_CLOSE}"
        raise LineFault(start, what) from None


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        value = _DECODER.decode(line)
    except RecursionError:
        raise LineFault(number, "values nested too deep; write one flat object per line") from None
    except ValueError as error:
        without_return(line, number)
        raise LineFault(number, f"not a JSON object ({first_line(error)}); write one whole object per line") from None
    if not isinstance(value, dict):
        raise LineFault(number, f"{shown(value)} is not a JSON object; write one object per line")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, checked for duplicate keys: the JSON decoder would silently keep the last of two equal keys."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)
