"""Text files with a header line: with quotes as in csv (RFC 4180), or without, where a quote is a character of the text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.config.data_params import TableSpec
from pipeline.data.readers.quotes import LooksQuoted
from pipeline.data.readers.row_blocks import Block, Record, place, text_blocks
from pipeline.data.readers.text import LONE_RETURN, MOST_CHARACTERS, LineFault, lines, without_return
from pipeline.utils.errors import UserError

Fields = tuple[int, list[str], int]
"""First line of a record, its fields, its number of characters."""

_ANNOTATION = re.compile(r"label\d+\Z")
_UNCLOSED = 'a quote (") is opened and not closed; close it, or write it twice and put the field in quotes'
_STRAY = 'a quote (") in a field that is not quoted, or text after a closing quote; put the field in quotes and double its quotes'
# What separates columns in practice. Other signs may be part of the name of the only column.
_NOT_NAMES = re.compile(r"[;|^~\x00-\x08\x0e-\x1f]")
_BLANK = "an empty line between rows; remove it"


class DelimitedTable:
    """A csv or tab-separated file, from blocks of its bytes.

    Args:
        name: the file's name, for messages.
        separator: the character between two fields.
        form: what params.yaml says of the file.

    Raises:
        UserError: the header looks as if another character separates the columns, or as if it was quoted.
    """

    def __init__(self, name: str, blocks: Iterable[bytes], separator: str, form: TableSpec) -> None:
        self._name = name
        quoted = form.quotes == "csv" if form.quotes or separator == "\t" else True
        self._looks = None if quoted or form.quotes else LooksQuoted(name)
        self._records = _records(lines(blocks), separator, quoted)
        self._row = -1
        _, header, _ = self._next() or (1, [], 0)
        self._row = 0
        self.columns = [column.strip() for column in header]
        other = _NOT_NAMES.findall(header[0]) if len(header) == 1 and not form.separator else []
        if other:
            raise UserError(
                f"{name}: line 1: {other[0]!r} is between the columns, not a comma or a tab; "
                f"set separator: {json.dumps(other[0])} for this file in params.yaml"
            )
        if self._looks is not None:
            self._looks.see(0, 1, header, header)
            self._looks.finish()
        # The last columns of SNLI and MultiNLI are the labels of single annotators; rows may end early if labels are missing.
        self._least = len(header)
        while separator == "\t" and self._least > 1 and _ANNOTATION.match(self.columns[self._least - 1]):
            self._least -= 1

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        return text_blocks(
            self._name, wanted, self._rows([self.columns.index(column) for column in dict.fromkeys(wanted)]), line_is_row=False
        )

    def _rows(self, indices: Sequence[int]) -> Iterator[Record]:
        most, least = len(self.columns), self._least
        for line, fields, size in iter(self._next, None):
            self._row += 1
            if not least <= len(fields) <= most:
                quoted = self._looks is not None and any(field.startswith('"') for field in fields)
                raise UserError(
                    f"{self._name}: {place(self._row, line)}: {len(fields)} fields where the header has {most}; correct the row, "
                    f"or {'set quotes: csv if quotes enclose a field' if quoted else 'the separators and quotes in it'}"
                )
            values = [fields[i] for i in indices]
            if self._looks is not None:
                self._looks.see(self._row, line, values, fields)
            yield Record(values=values, line=line, size=size)
        if self._looks is not None:
            self._looks.finish()

    def _next(self) -> Fields | None:
        """The next record, None at the end. A fault of a line raises a `UserError` that names its row."""
        try:
            return next(self._records, None)
        except LineFault as fault:
            raise UserError(f"{self._name}: {place(self._row + 1, fault.line)}: {fault.what}") from None


def _records(source: Iterator[str], separator: str, quoted: bool) -> Iterator[Fields]:
    sign = re.escape(separator)
    field = re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|([^"\r\n{sign}]*))({sign}|\Z)')
    blank: int | None = None
    parts: list[str] = []
    start, size, quotes = 0, 0, 0
    for number, line in enumerate(source, 1):
        if not parts:
            in_one_line = not quoted or '"' not in line
            line = without_return(line, number) if in_one_line else line
            if not line:
                blank = blank or number
                continue
            if blank is not None:
                raise LineFault(blank, _BLANK)
            if in_one_line:
                yield number, line.split(separator), len(line)
                continue
            start, size, quotes = number, 0, 0
        parts.append(line)
        size += len(line) + 1
        if size > MOST_CHARACTERS:
            raise LineFault(start, f"a record of more than {MOST_CHARACTERS:,} characters; {_UNCLOSED}")
        # A record is complete if its number of quotes is even: a field has two around it, and those inside are doubled.
        quotes += line.count('"')
        if quotes % 2 == 0:
            yield start, _split("\n".join(parts).removesuffix("\r"), start, field), size
            parts = []
    if parts:
        raise LineFault(start, _UNCLOSED)


def _split(record: str, line: int, field: re.Pattern[str]) -> list[str]:
    """The fields of a record that contains quotes."""
    fields: list[str] = []
    position = 0
    while (match := field.match(record, position)) is not None:
        fields.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if match[3] == "":
            return fields
    lone = re.match(r'[^"\r\n]*\r', record[position:]) is not None
    raise LineFault(line + record.count("\n", 0, position), LONE_RETURN if lone else _STRAY)
