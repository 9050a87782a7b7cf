"""Text files with a header line: csv (RFC 4180), and tab-separated files, in which quotes have no special meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.data.readers.row_blocks import Block, Record, place, text_blocks
from pipeline.data.readers.text import LONE_RETURN, MOST_CHARACTERS, LineFault, lines, without_return
from pipeline.utils.errors import UserError

Fields = tuple[int, list[str], int]
"""First line of a record, its fields, its number of characters."""

_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"(,|\Z)')
_PLAIN = re.compile(r'([^",\r\n]*)(,|\Z)')
_ANNOTATION = re.compile(r"label\d+\Z")
_UNCLOSED = 'a quote (") is opened and not closed; close it, or write it twice and put the field in quotes'
_STRAY = 'a quote (") in a field that is not quoted, or text after a closing quote; put the field in quotes and double its quotes'
_BLANK = "an empty line between rows; remove it"


class DelimitedTable:
    """A csv or tab-separated file, from blocks of its bytes."""

    def __init__(self, name: str, blocks: Iterable[bytes], *, tabs: bool) -> None:
        self._name = name
        self._records = (_tab_separated if tabs else _comma_separated)(lines(blocks))
        self._row = -1
        _, header, _ = self._next() or (1, [], 0)
        self._row = 0
        self.columns = [column.strip() for column in header]
        # The last columns of SNLI and MultiNLI are the labels of single annotators; rows may end early if labels are missing.
        self._least = len(header)
        while tabs and self._least > 1 and _ANNOTATION.match(self.columns[self._least - 1]):
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
                raise UserError(
                    f"{self._name}: {place(self._row, line)}: {len(fields)} fields where the header has {most}; "
                    "correct the row, or the separators and quotes in it"
                )
            yield Record(values=[fields[i] for i in indices], line=line, size=size)

    def _next(self) -> Fields | None:
        """The next record, None at the end. A fault of a line raises a `UserError` that names its row."""
        try:
            return next(self._records, None)
        except LineFault as fault:
            raise UserError(f"{self._name}: {place(self._row + 1, fault.line)}: {fault.what}") from None


def _tab_separated(source: Iterator[str]) -> Iterator[Fields]:
    blank: int | None = None
    for number, line in enumerate(source, 1):
        line = without_return(line, number)
        if not line:
            blank = blank or number
            continue
        if blank is not None:
            raise LineFault(blank, _BLANK)
        yield number, line.split("\t"), len(line)


def _comma_separated(source: Iterator[str]) -> Iterator[Fields]:
    blank: int | None = None
    parts: list[str] = []
    start, size, opened = 0, 0, False
    for number, line in enumerate(source, 1):
        if not opened:
            if '"' not in line:
                line = without_return(line, number)
                if not line:
                    blank = blank or number
                    continue
                if blank is not None:
                    raise LineFault(blank, _BLANK)
                yield number, line.split(","), len(line)
                continue
            if blank is not None:
                raise LineFault(blank, _BLANK)
            start, size, parts = number, 0, []
        parts.append(line)
        size += len(line) + 1
        if size > MOST_CHARACTERS:
            raise LineFault(start, f"a record of more than {MOST_CHARACTERS:,} characters; {_UNCLOSED}")
        # A record is complete if its number of quotes is even: a field has two around it, and those inside are doubled.
        opened ^= line.count('"') % 2 == 1
        if not opened:
            yield start, _split("\n".join(parts).removesuffix("\r"), start), size
    if opened:
        raise LineFault(start, _UNCLOSED)


def _split(record: str, line: int) -> list[str]:
    """The fields of a record that contains quotes."""
    fields: list[str] = []
    position = 0
    while True:
        quoted = record.startswith('"', position)
        match = (_QUOTED if quoted else _PLAIN).match(record, position)
        if match is None:
            lone = not quoted and re.match(r'[^",\r\n]*\r', record[position:]) is not None
            raise LineFault(line + record.count("\n", 0, position), LONE_RETURN if lone else _STRAY)
        fields.append(match[1].replace('""', '"') if quoted else match[1])
        position = match.end()
        if match[2] == "":
            return fields
