"""The project's own lines on the terminal, with levels.

Progress and status (info) go to stdout as they are. Warnings, errors and details (debug) go to stderr after their level's name.
What a command was asked for, such as the hits of a search, is its output: it is printed and not logged.
"""

from __future__ import annotations

import io
import logging
import sys

log = logging.getLogger("gausscse")

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
"""Name → lowest level that is shown. Errors are always shown."""
LOG_VARIABLE = "GAUSSCSE_LOG"
"""Environment variable that holds one of these names; default info."""


class _Terminal(logging.Handler):
    # The streams are looked up at each line because tests and callers may replace them.
    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. An OSError of the stream (disk full, pipe closed) goes to the caller, as from print."""
        plain = record.levelno == logging.INFO
        stream = sys.stdout if plain else sys.stderr
        stream.write(("" if plain else f"{record.levelname.lower()}: ") + self.format(record) + "\n")
        stream.flush()


def set_up(level: str = "info") -> None:
    r"""Show the lines of this process on its terminal, from this level of `LEVELS` on.

    All output, also what is printed, shows characters that the terminal's encoding lacks as \u2192; Python would raise an error.

    Entry points call it. Without it, as in a program that uses the library, `log` is an ordinary logger.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    log.setLevel(LEVELS[level])
    # Handlers of other libraries on the root logger would show each line again.
    log.propagate = False
    if not log.handlers:
        log.addHandler(_Terminal())
