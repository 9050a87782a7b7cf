"""Blocks: some rows of a file as columns, with the place of each row for messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pipeline.data.readers.text import LineFault
from pipeline.data.rows import BATCH_ROWS
from pipeline.errors import UserError

BLOCK_CHARACTERS = 32_000_000
"""A block of text ends after so many characters though it has fewer than `BATCH_ROWS` rows."""
_SHOWN = 60
_SHOWN_NAMES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive rows of a file."""

    columns: Mapping[str, pa.Array]
    """The columns that were asked for, each (n,)."""
    rows: int
    before: int
    """Rows of the file before this block."""
    lines: Sequence[int] | None = None
    """Line each row starts at; None where there are no lines, or a line is a row."""

    def place(self, index: int) -> str:
        """The row `index` of this block, as a message names it."""
        return place(self.before + index + 1, None if self.lines is None else self.lines[index])


class Table(Protocol):
    """A file that is open."""

    @property
    def columns(self) -> Sequence[str]:
        """All its columns, repeated names included."""
        ...

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """The rows from the first to the last, with these columns only."""
        ...


class Record(NamedTuple):
    """One row of a text file."""

    values: Sequence[Any]
    """As many as columns are wanted: text or None; numbers where the format has them."""
    line: int
    size: int
    """Characters of the row in the file."""


def text_blocks(name: str, wanted: Sequence[str], records: Iterable[Record], *, line_is_row: bool) -> Iterator[Block]:
    """Records gathered into blocks."""
    rows: list[Record] = []
    before, size = 0, 0
    for record in records:
        rows.append(record)
        size += record.size
        if len(rows) == BATCH_ROWS or size > BLOCK_CHARACTERS:
            yield _block(name, wanted, rows, before, line_is_row)
            before, size, rows = before + len(rows), 0, []
    if rows:
        yield _block(name, wanted, rows, before, line_is_row)


def place(row: int, line: int | None) -> str:
    """'row 3 (line 4)'; the line is left out where it is None or the row's own number."""
    if row == 0:
        return f"line {line}"
    return f"row {row}" if line is None or line == row else f"row {row} (line {line})"


def shown(value: object) -> str:
    """A value in a message: quoted, on one line, of bounded length."""
    text = repr(value if not isinstance(value, str) else value[: _SHOWN + 1])
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}…"


def listed(names: Sequence[str]) -> str:
    """Names in a message, on one line, of bounded length."""
    text = ", ".join(name[:_SHOWN] if name.isprintable() and name else shown(name) for name in names)
    return text if len(text) <= _SHOWN_NAMES else f"{text[:_SHOWN_NAMES]}…"


def first_line(error: BaseException) -> str:
    """What an exception of a library says, on one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "") or type(error).__name__
    return text.rstrip(".") if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns whatever a library raises while a file is read into one line that names the file.

    Damaged files reach libraries in ways nobody has listed; each must still end as a message, not as a traceback.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except LineFault as fault:
        raise UserError(f"{name}: line {fault.line}: {fault.what}") from None
    except Exception as error:
        raise UserError(f"{name}: cannot be read ({first_line(error)}); it may be damaged: get or write it again") from error


def _block(name: str, wanted: Sequence[str], rows: Sequence[Record], before: int, line_is_row: bool) -> Block:
    lines = None if line_is_row else [record.line for record in rows]
    block = Block(columns={}, rows=len(rows), before=before, lines=lines)
    columns = {
        column: _array(name, column, [record.values[i] for record in rows], block)
        for i, column in enumerate(dict.fromkeys(wanted))
    }
    return Block(columns=columns, rows=len(rows), before=before, lines=lines)


def _array(name: str, column: str, values: list[Any], block: Block) -> pa.Array:
    """Text as large_string; numbers (JSON has them) as int64 or double, if the column holds nothing else."""
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:
        index = next(i for i, value in enumerate(values) if isinstance(value, str) and not _encodes(value))
        what = "holds half a character (a lone surrogate such as \\ud800); write it as one whole character"
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float} and all(value is None or abs(value) < 2**63 for value in values):
            return pa.array(values, pa.float64() if float in kinds else pa.int64())
        index = next(i for i, value in enumerate(values) if not isinstance(value, str | None))
        what = f"holds {shown(values[index])}, not text; put it in quotes"
    raise UserError(f"{name}: {block.place(index)}: column {column!r} {what}")


def _encodes(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
