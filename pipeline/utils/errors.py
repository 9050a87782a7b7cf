"""Errors that users read, how a stage ends with one, and how to show foreign text on a terminal."""

from __future__ import annotations

import errno
import os
import re
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pipeline.utils.logs import LEVELS, LOG_VARIABLE, log, set_up

# C0, DEL and C1 controls, which a terminal obeys; characters that change text direction or end a line; surrogate halves.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str, keep: str = "") -> str:
    r"""Foreign text made safe for a terminal: control characters are shown as \x1b or \u202e, except those in `keep`."""
    return _OBEYED.sub(lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape").decode(), text)


# Ray's lines of level info and debug, from Python and from C++.
_PROGRESS = re.compile(r"\b(INFO|DEBUG) \S+:\d+ -- |^\[[^]]* [ID] \d+ \d+\]")


class UserError(Exception):
    """An error that the user can fix: one line with what is wrong, where, and what to do."""


def counted(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException, most: int = 1000) -> str:
    """A library exception's message without the advice and numbers that may follow, at most `most` characters long."""
    text = _lines(error)[0].rstrip(".")
    return text if len(text) <= most else f"{text[:most]}…"


def last_line(error: BaseException) -> str:
    """The message of an exception whose text is a traceback, or the end of a log of Ray: its last line without progress."""
    lines = _lines(error)
    line = next((line for line in reversed(lines) if not _PROGRESS.search(line)), lines[-1])
    # For our own errors, the message alone is enough.
    return re.sub(r"^pipeline\.utils\.errors\.\w+: ", "", line)


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def passes(error: OSError) -> bool:
    """True if this file system error is temporary, so that it says nothing about the file."""
    # Temporary errors of a network file system.
    return error.errno in {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ECONNRESET, errno.ENOTCONN, errno.EAGAIN),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH),
    }


class RunError(UserError):
    """A run cannot continue, but its work is not the cause.

    The work is not recorded as failed: the stage ends, and the next run continues the work.
    """


class StorageError(RunError):
    """A storage or a corpus is unreachable, refuses access, or is damaged or full."""


class TransientStorageError(StorageError):
    """A temporary `StorageError` (an overloaded server, a broken network) that persisted through the file system's retries."""


def fail(error: UserError, code: int = 2) -> NoReturn:
    """Show the error as one line on stderr and exit with `code`."""
    log.error(escaped(" ".join(str(error).split())))
    raise SystemExit(code)


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's `main`; the environment variable GAUSSCSE_LOG decides which lines are shown.

    A `UserError` becomes one line and exit code 2. After Ctrl-C and SIGTERM, the stage cleans up (removes temporary files, ends
    runs, shuts Ray down) and exits with 130 and 143.
    """
    signals: list[int] = []

    def on_sigterm(number: int, _: FrameType | None) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_sigterm)
    set_up()
    try:
        # An empty variable counts as not set.
        level = os.environ.get(LOG_VARIABLE) or "info"
        if level not in LEVELS:
            raise UserError(f"{LOG_VARIABLE} (environment): got {level!r}; write debug, info or warning")
        set_up(level)
        main()
    except UserError as error:
        fail(error)
    except ModuleNotFoundError as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
        missing, package = (error.name or "").partition(".")[0], Path(__file__).parents[1]
        # What a user's own module lacks is not for this program to name.
        if missing in ("", package.name, "stages") or package not in Path(frames[-1].filename).parents:
            raise
        fail(UserError(f"this command needs {missing}, which is not installed: pip install 'gausscse-pipeline[train]'"))
    except KeyboardInterrupt as interrupt:
        message = str(interrupt) or "finished work is kept, run the same command again to go on"
        fail(UserError(f"interrupted; {message}"), code=143 if signals else 130)
    except (MemoryError, RuntimeError) as error:
        # torch has no type of its own for a processor's memory.
        if not isinstance(error, MemoryError) and not re.search("can't allocate memory|out of memory", str(error)):
            raise
        fail(UserError(f"out of memory: {first_line(error)}; take fewer or shorter texts at once, or smaller batches"), code=1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(UserError(f"{where}{error.strerror or error}"), code=1)
