"""Removes trials from a storage for `gausscse gc`, so that a kill leaves no half trial that counts."""

from __future__ import annotations

import json
import re

from pipeline.storage.inventory import Thing, remove
from pipeline.storage.object_store import USES, Storage
from pipeline.storage.sync import REF
from pipeline.trials.locks import DRIVER_LOCK, WRITER_LOCK, held
from pipeline.trials.progress_log import LOG, RECORDS
from pipeline.trials.trial import BEST, FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED, WRITER

# What a trial's result is read from. These go first: what is left then counts as a trial that was never finished.
_VERDICTS = (OUTCOME, STOPPED, FAILURE)
_KNOWN = {*_VERDICTS, DRIVER_LOCK, WRITER_LOCK, WRITER, LOG, RECORDS, BEST, LATEST, PREVIOUS, PAUSE, USES}
_KNOWN_PATTERN = re.compile(rf"crash-\d+\.log|\..+\.(tmp|old)|(?:{LATEST}|{PREVIOUS}|{BEST}-[0-9a-f]{{64}}){re.escape(REF)}")


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


def remove_trial(storage: Storage, thing: Thing) -> bool:
    """Remove a trial; a process that waits for its lock then begins the trial again.

    Returns:
        False, with nothing changed, if a process holds its lock.
    """
    if storage.folder is None:
        remove(storage, thing, _VERDICTS)
        return True
    with held(storage.folder / thing.name / DRIVER_LOCK, 0.0) as mine:
        if mine:
            remove(storage, thing)
    return mine
