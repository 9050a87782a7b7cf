"""Files with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from pipeline.data.readers.row_blocks import Block, Record, shown, text_blocks
from pipeline.data.readers.text import LONE_RETURN, LineFault, lines
from pipeline.utils.errors import UserError, first_line


class JsonTable:
    """A jsonl file; the keys of the first object are the columns."""

    def __init__(self, name: str, blocks: Iterable[bytes]) -> None:
        self._name = name
        self._decode = json.JSONDecoder(object_pairs_hook=_object).decode
        self._lines = enumerate(lines(blocks), 1)
        self._first = next(self._objects(), None)
        self.columns = [] if self._first is None else list(self._first[1])

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        return text_blocks(self._name, wanted, self._rows(list(dict.fromkeys(wanted))), line_is_row=True)

    def _rows(self, wanted: Sequence[str]) -> Iterator[Record]:
        for row, values, size in filter(None, chain([self._first], self._objects())):
            for column in wanted:
                if column not in values:
                    raise UserError(f"{self._name}: row {row}: no key {column!r}, which row 1 has; add it (null for none)")
            yield Record(values=[values[column] for column in wanted], line=row, size=size)

    def _objects(self) -> Iterator[tuple[int, dict[str, Any], int]]:
        blank = None
        try:
            for row, line in self._lines:
                if not line or line.isspace():
                    blank = blank or row
                    continue
                if blank is not None:
                    raise LineFault(blank, "an empty line between rows; remove it")
                yield row, self._parsed(line, row), len(line)
        except LineFault as fault:
            raise UserError(f"{self._name}: row {fault.line}: {fault.what}") from None

    def _parsed(self, line: str, row: int) -> dict[str, Any]:
        try:
            value = self._decode(line)
        except RecursionError:
            raise LineFault(row, "values nested too deep; write one flat object per line") from None
        except ValueError as error:
            if "\r" in line.removesuffix("\r"):
                raise LineFault(row, LONE_RETURN) from None
            raise LineFault(row, f"not a JSON object ({first_line(error)}); write one whole object per line") from None
        if not isinstance(value, dict):
            raise LineFault(row, f"{shown(value)} is not a JSON object; write one object per line")
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, checked for duplicate keys: the JSON decoder would silently keep the last of two equal keys."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return record
