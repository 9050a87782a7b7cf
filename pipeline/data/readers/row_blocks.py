"""Blocks: consecutive rows of a file as columns, with the position of each row for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.data.readers.opening import LineFault
from pipeline.data.schema import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.logs import log

BLOCK_CHARACTERS = 32_000_000
"""A block of text ends after this many characters, even if it has fewer than `BATCH_ROWS` rows."""
# Half of a character beyond U+FFFF.
_HALF = re.compile("[\\ud800-\\udfff]")
_SHOWN = 60
_SHOWN_NAMES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive rows of a file."""

    columns: Mapping[str, pa.Array]
    """The wanted columns, each (n,)."""
    rows: int
    before: int
    """Rows of the file before this block."""
    lines: Sequence[int] | None = None
    """First line of each row; None if the file has no lines."""

    def place(self, index: int) -> str:
        """The position of row `index` of this block, for a message."""
        return place(self.before + index + 1, None if self.lines is None else self.lines[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An open file or split. It is closed when nothing refers to it any more."""

    columns: Sequence[str]
    """All columns, including repeated names."""
    blocks: Callable[[Sequence[str]], Iterator[Block]]
    """Reads all rows in order, once, with the wanted columns only."""
    stem: str = ""
    """The file's name in the `source` of its rows."""
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Column → names of its numbers (the hub's ClassLabel)."""


class Record(NamedTuple):
    """One row of a text file."""

    values: Sequence[Any]
    """One value for each wanted column: text or None, or a number if the format has numbers."""
    line: int
    size: int
    """Number of characters of the row in the file."""


def text_blocks(name: str, wanted: Sequence[str], records: Iterable[Record]) -> Iterator[Block]:
    """Gather records into blocks. A `LineFault` becomes a `UserError` that names the file and the row."""
    rows: list[Record] = []
    before, size = 0, 0
    try:
        for record in records:
            rows.append(record)
            size += record.size
            if len(rows) == BATCH_ROWS or size > BLOCK_CHARACTERS:
                yield _block(name, wanted, rows, before)
                before, size, rows = before + len(rows), 0, []
    except LineFault as fault:
        raise UserError(f"{name}: {place(before + len(rows) + 1, fault.line)}: {fault.what}") from None
    if rows:
        yield _block(name, wanted, rows, before)


def place(row: int, line: int | None) -> str:
    """'row 3 (line 4)', or 'row 3' if the line is None or equal to the row; row 0 is the header: 'line 1'."""
    if row == 0:
        return f"line {line}"
    return f"row {row}" if line is None or line == row else f"row {row} (line {line})"


def shown(value: object, most: int = _SHOWN) -> str:
    """A value for a message: quoted, on one line, of bounded length."""
    text = repr(value if not isinstance(value, str) else value[: most + 1])
    return text if len(text) <= most + 2 else f"{text[:most]}…"


def listed(names: Sequence[str]) -> str:
    """Names for a message: on one line, of bounded length."""
    text = ", ".join(name[:_SHOWN] if name.isprintable() and name else shown(name) for name in names)
    return text if len(text) <= _SHOWN_NAMES else f"{text[:_SHOWN_NAMES]}…"


@cache
def warn_once(line: str) -> None:
    """Print a warning; a file is read several times."""
    log.warning(line)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn any exception while a file is read into a `UserError` of one line that names the file.

    Libraries raise many kinds of exceptions for damaged files; each must end as a message, not as a traceback.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except LineFault as fault:
        raise UserError(f"{name}: line {fault.line}: {fault.what}") from None
    except Exception as error:
        raise UserError(f"{name}: cannot be read ({first_line(error)}); it may be damaged: get or write it again") from error


def _block(name: str, wanted: Sequence[str], rows: Sequence[Record], before: int) -> Block:
    block = Block(columns={}, rows=len(rows), before=before, lines=[record.line for record in rows])
    columns = {column: _array(name, column, [record.values[i] for record in rows], block) for i, column in enumerate(wanted)}
    return replace(block, columns=columns)


def _array(name: str, column: str, values: list[Any], block: Block) -> pa.Array:
    """Values as large_string; as int64 or double if all are numbers (JSON has numbers).

    Raises:
        UserError: a value is neither, or contains a lone surrogate.
    """
    try:
        return pa.array(values, pa.large_string())
    except (UnicodeEncodeError, pa.ArrowInvalid, pa.ArrowTypeError):
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float} and all(value is None or abs(value) < 2**63 for value in values):
            return pa.array(values, pa.float64() if float in kinds else pa.int64())
    index, value = next(
        (i, v) for i, v in enumerate(values) if v is not None and not (isinstance(v, str) and not _HALF.search(v))
    )
    fault = "a lone surrogate; write a whole character" if isinstance(value, str) else "not text; put it in quotes"
    raise UserError(f"{name}: {block.place(index)}: column {column!r} holds {shown(value)}, {fault}")
