"""The InferSent format, one file per column: s1.X, s2.X and labels.X in the same folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from pipeline.config.data_params import TableSpec
from pipeline.data.readers.quotes import NO_CSV, LooksQuoted
from pipeline.data.readers.row_blocks import Block, Record, text_blocks
from pipeline.data.readers.text import LineFault, lines, without_return
from pipeline.utils.errors import UserError

COLUMNS = ("s1", "s2", "labels")
_NAME = re.compile(r"(?:s1|s2|labels)\.(.+)")


def siblings(full: Path) -> dict[str, Path] | None:
    """Column → file for the three files; None if the name is not one of theirs or a file is missing."""
    match = _NAME.fullmatch(full.name)
    if match is None:
        return None
    files = {column: full.with_name(f"{column}.{match[1]}") for column in COLUMNS}
    return files if all(file.is_file() for file in files.values()) else None


def missing(full: Path) -> str:
    """Part of a message that names the missing ones of the three files; '' if the name is not one of theirs."""
    match = _NAME.fullmatch(full.name)
    if match is None:
        return ""
    names = [f"{column}.{match[1]}" for column in COLUMNS]
    return f"; {' and '.join(n for n in names if not full.with_name(n).is_file())} must be in the same folder (InferSent)"


class InferSentTable:
    """A table of the three files; a row has one line of each."""

    columns = COLUMNS

    def __init__(self, names: Mapping[str, str], sources: Mapping[str, Iterator[bytes]], form: TableSpec) -> None:
        self._names = names
        self._form = form
        self._sources = sources

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        indices = [COLUMNS.index(column) for column in dict.fromkeys(wanted)]
        return text_blocks(self._names["s1"], wanted, self._rows(indices), line_is_row=True)

    def _rows(self, indices: Sequence[int]) -> Iterator[Record]:
        streams = [self._lines(column) for column in COLUMNS]
        for row, values in enumerate(zip_longest(*streams), 1):
            if None in values:
                counts = [row - (value is None) + sum(1 for _ in stream) for value, stream in zip(values, streams, strict=True)]
                sizes = ", ".join(f"{self._names[column]} {count:,}" for column, count in zip(COLUMNS, counts, strict=True))
                raise UserError(f"{self._names['s1']}: the three files differ in their number of lines ({sizes}); get them again")
            yield Record(values=[values[i] for i in indices], line=row, size=sum(map(len, values)))

    def _lines(self, column: str) -> Iterator[str]:
        looks = LooksQuoted(self._names[column], NO_CSV)
        try:
            for number, line in enumerate(lines(self._sources[column]), 1):
                line = without_return(line, number)
                looks.see(number, number, [line], [line])
                yield line
        except LineFault as fault:
            raise UserError(f"{self._names[column]}: row {fault.line}: {fault.what}") from None
        if self._form.quotes is None:
            looks.finish()
