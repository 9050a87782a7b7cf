"""The one exception a user is meant to read, how a stage ends at it, and how foreign text is shown on a terminal."""

from __future__ import annotations

import errno
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

# C0, DEL and C1, which a terminal obeys; characters that change the direction of text or end a line; halves of a character.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str, keep: str = "") -> str:
    r"""Foreign text for a terminal: a character that it would obey is shown as \x1b or \u202e, unless it is one to `keep`."""
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


class UserError(Exception):
    """Something the user can put right: what is wrong, where, and what to do, in one line."""


# Errors of a network file system that pass by themselves.
_PASSING = {
    getattr(errno, name)
    for name in (
        *("EIO", "ESTALE", "ETIMEDOUT", "EREMOTEIO", "ECONNRESET", "ENOTCONN", "EHOSTDOWN", "EHOSTUNREACH", "ENETUNREACH"),
        "EAGAIN",
    )
}


def passes(error: OSError) -> bool:
    """Whether this error of a file system passes by itself, so that it says nothing about the file."""
    return error.errno in _PASSING


class RunError(UserError):
    """A run cannot go on, and the work is not at fault.

    The work is not recorded as failed: the stage ends, and the next run goes on with it.
    """


class StorageError(RunError):
    """A storage or a corpus cannot be reached, refuses, is damaged or full."""


class TransientStorageError(StorageError):
    """A temporary `StorageError` (an overloaded server, a broken network) that the file system's own retries did not outlast."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, where Ctrl-C would be a KeyboardInterrupt: nobody is there to be asked."""


def fail(error: UserError, code: int = 2) -> NoReturn:
    """Print the error as one line on stderr and leave with `code`."""
    print(f"error: {escaped(' '.join(str(error).split()))}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's `main`.

    A `UserError` becomes one line and exit code 2. Ctrl-C and SIGTERM unwind the stage in order (temporary files removed, runs
    ended, Ray shut down) and leave with 130 and 143.
    """
    signals: list[int] = []

    def on_sigterm(number: int, _: FrameType | None) -> NoReturn:
        signals.append(number)
        raise Terminated

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except UserError as error:
        fail(error)
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "finished work is kept, run the same command again to go on"
        fail(
            UserError(f"interrupted; {said}"),
            code=143 if signals else 130,
        )
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(UserError(f"{where}{error.strerror or error}"), code=1)
