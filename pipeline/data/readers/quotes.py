"""Text that a csv writer put in quotes, in a file whose quotes are read as characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from pipeline.data.readers.row_blocks import place, shown
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

# Quotes around a field, and in it only doubled ones, or such with a backslash before them.
_WRAPPED = re.compile(r'"(?:[^"\\]|""|\\.)*"', re.DOTALL)
_REMEDY = "for this file in params.yaml set quotes: csv, or quotes: none if they belong to the text"
NO_CSV = "write the file again without them, or for this file in params.yaml set quotes: none if they belong to the text"


class LooksQuoted:
    """Collects the evidence of one file.

    A csv writer puts every field that has a quote into quotes, so one field with a quote elsewhere shows that the file was not
    written so, as in the official files of SNLI, MultiNLI and SICK.
    """

    def __init__(self, name: str, remedy: str = _REMEDY) -> None:
        self._name, self._remedy = name, remedy
        # The first field in quotes, and the first that has quotes inside them.
        self._first = self._first_doubled = ""
        self._has_others = False

    def see(self, row: int, line: int, values: Sequence[str], fields: Sequence[str]) -> None:
        """Look at a row: the values that are read, and all its fields."""
        for value in values:
            if '"' in value and _WRAPPED.fullmatch(value):
                found = f"{place(row, line)}: {shown(value)}"
                self._first = self._first or found
                if '"' in value[1:-1]:
                    self._first_doubled = self._first_doubled or found
        self._has_others = self._has_others or any('"' in field and not _WRAPPED.fullmatch(field) for field in fields)

    def finish(self) -> None:
        """Judge the rows so far. Prints one line if some are quoted and others show that the file is not.

        Raises:
            UserError: all text with quotes looks quoted.
        """
        # Next to text that is certainly not quoted, quotes around a whole sentence may be its own.
        found = self._first_doubled if self._has_others else self._first
        fault = f"{self._name}: {found} looks quoted by a csv writer, but quotes are read as text here"
        if found and not self._has_others:
            raise UserError(f"{fault}; {self._remedy}")
        if found:
            warn_once(f"{fault}, because other fields have quotes inside; {self._remedy}")


@cache
def warn_once(line: str) -> None:
    """Print a warning; a file is read several times."""
    log.warning(line)
