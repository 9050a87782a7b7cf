"""Text that a csv writer put in quotes, in a file whose quotes are read as characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from pipeline.config.data_params import TableSpec
from pipeline.data.readers.row_blocks import place, shown
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

# Quotes around a field, and in it only doubled ones, or such with a backslash before them.
_WRAPPED = re.compile(r'"(?:[^"\\]|""|\\.)*"', re.DOTALL)
_REMEDY = "for this file in params.yaml set quotes: csv, or quotes: none if they belong to the text"


class Form(NamedTuple):
    """What params.yaml says of a text file (`TableSpec`)."""

    separator: str | None = None
    quotes: Literal["csv", "none"] | None = None


NO_FORM = Form()


def form_of(spec: TableSpec) -> Form:
    """What an entry of params.yaml says."""
    return Form(spec.separator, spec.quotes)


class LooksQuoted:
    """Collects the evidence of one file.

    A csv writer puts every field that has a quote into quotes, so one field with a quote elsewhere shows that the file was not
    written so, as in the official files of SNLI, MultiNLI and SICK.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._first: tuple[str, str] | None = None
        self._first_doubled: tuple[str, str] | None = None
        self._has_others = False

    def see(self, row: int, line: int, values: Sequence[str], fields: Sequence[str]) -> None:
        """Look at a row: the values that are read, and all its fields."""
        for value in values:
            if '"' in value and _WRAPPED.fullmatch(value):
                self._first = self._first or (place(row, line), value)
                if '"' in value[1:-1]:
                    self._first_doubled = self._first_doubled or (place(row, line), value)
        self._has_others = self._has_others or any('"' in field and not _WRAPPED.fullmatch(field) for field in fields)

    def finish(self) -> None:
        """Judge the rows so far. Prints one line if some are quoted and others show that the file is not.

        Raises:
            UserError: all text with quotes looks quoted.
        """
        # Next to text that is certainly not quoted, quotes around a whole sentence may be its own.
        found = self._first_doubled if self._has_others else self._first
        if found is None:
            return
        where, value = found
        fault = f"{self._name}: {where}: {shown(value)} looks quoted by a csv writer, but quotes are read as text here"
        if not self._has_others:
            raise UserError(f"{fault}; {_REMEDY}")
        warn_once(f"{fault}, because other fields have quotes inside; {_REMEDY}")


@cache
def warn_once(line: str) -> None:
    """Print a warning; a file is read several times."""
    log.warning(line)
