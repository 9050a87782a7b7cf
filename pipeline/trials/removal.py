"""Removes trials from a storage for `gausscse gc`: under their locks, and so that a kill leaves no half trial that counts."""

from __future__ import annotations

import fcntl
import json
import re
from contextlib import ExitStack
from pathlib import Path

from pipeline.storage.inventory import Thing, discard, remove_files
from pipeline.storage.object_store import Storage
from pipeline.storage.sync import REF
from pipeline.trials.locks import DRIVER_LOCK, WRITER, WRITER_LOCK, held
from pipeline.trials.progress_log import LOG, RECORDS
from pipeline.trials.trial import BEST, FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED

_LOCKS = (DRIVER_LOCK, WRITER_LOCK)
# What a trial's result is read from. These go first: what is left then counts as a trial that was never finished.
_VERDICTS = (OUTCOME, STOPPED, FAILURE)
_KNOWN = {*_LOCKS, *_VERDICTS, WRITER, LOG, RECORDS, BEST, LATEST, PREVIOUS, PAUSE}
_KNOWN_PATTERN = re.compile(
    rf"crash-\d+\.log|\..+\.(tmp|old)|(?:{LATEST}|{PREVIOUS}){re.escape(REF)}|{BEST}-[0-9a-f]{{64}}{re.escape(REF)}"
)


def strangers(thing: Thing) -> list[str]:
    """Names in a trial's folder that this program did not write."""
    names = dict.fromkeys(file.removeprefix(f"{thing.name}/").partition("/")[0] for file in thing.files)
    return [name for name in names if name not in _KNOWN and not _KNOWN_PATTERN.fullmatch(name)]


def weights_of(storage: Storage, name: str) -> str | None:
    """The content digest of a finished trial's model; None if the trial is not finished or its outcome cannot be read."""
    try:
        return str(json.loads(storage.read(f"{name}/{OUTCOME}") or "")["outcome"]["weights"])
    except (ValueError, KeyError, TypeError):
        return None


def busy(storage: Storage, name: str) -> bool:
    """Whether a process holds a lock of a trial; always false on a storage without locks."""
    return storage.folder is not None and any(_held(storage.folder / name / lock) for lock in _LOCKS)


def _held(lock: Path) -> bool:
    """Whether others hold a lock. In contrast to `held`, it writes nothing."""
    try:
        with lock.open("rb") as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def remove_trial(storage: Storage, thing: Thing) -> bool:
    """Remove a trial; a process that waits for its lock then begins the trial again.

    Returns:
        False, with nothing changed, if a process holds one of its locks.
    """
    if storage.folder is None:
        verdicts = [f"{thing.name}/{name}" for name in _VERDICTS]
        first = [file for file in verdicts if file in thing.files]
        remove_files(storage, thing.name, [*first, *(file for file in thing.files if file not in first)])
        return True
    folder = storage.folder / thing.name
    with ExitStack() as stack:
        if not all(stack.enter_context(held(folder / lock, 0.0)) for lock in _LOCKS):
            return False
        discard(storage, thing.name)
    return True
