"""The ledger of trials: a folder a trial under `<storage>/trials`, who may write in it, and what a kill may leave there.

Two locks stand in each folder. `driver.lock` is held by the process that has a trial trained, for as long as it has: a second
pipeline on the same storage waits, and then finds the trial finished. `writer.lock` is held by the one worker that writes: a new
one waits until its predecessor is gone, whose driver may have died before it. The kernel lets go of both when their holder dies,
a file server when it has not heard of its host for a while. A storage that is no folder (s3://…) has no locks: see
`pipeline.mirror` for why none is needed there.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StorageError, UserError
from pipeline.files import check_sums
from pipeline.mirror import Mirror
from pipeline.progress import RECORDS
from pipeline.trial import FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED, EarlyStopping, stopped

DRIVER_LOCK = "driver.lock"
WRITER_LOCK = "writer.lock"
# Which search the worker that writes is of, where there are no locks.
WRITER = "writer"
# Seconds between two tries of a lock that somebody holds.
_POLL = 0.1


@contextmanager
def held(file: Path, patience: float | None = None) -> Iterator[bool]:
    """Hold a lock; with a patience in seconds, the block runs without it (and is told so) when others hold it for longer.

    Raises:
        UserError: the file system has no locks.
    """
    deadline = None if patience is None else time.monotonic() + patience
    with file.open("a", encoding="utf-8") as stream:
        while not (mine := _try(stream.fileno(), file)) and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL)
        yield mine


def _try(descriptor: int, file: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise UserError(
            f"{file}: the file system has no locks ({error.strerror}), so runs cannot be kept apart; "
            "set cluster.storage (execution.yaml) to a folder on one that has"
        ) from None
    return True


def claim(mirror: Mirror, rule: EarlyStopping | None, patience: float) -> bool:
    """Make a trial ready to be run: notes of earlier failures and of stops that this rule does not honour go, and so do records
    of steps that are lost.

    Returns:
        False, and nothing is touched, if another driver has the trial trained and goes on doing so for `patience` seconds.
    """
    folder = mirror.folder
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder / DRIVER_LOCK, patience) as mine:
        if mine:
            for note in (FAILURE, PAUSE, WRITER):
                (folder / note).unlink(missing_ok=True)
            if not mirror.has(LATEST, PREVIOUS):
                # Nothing to resume from: the records of an earlier attempt are of steps that will be taken again.
                (folder / RECORDS).unlink(missing_ok=True)
            if stopped(folder, rule) is None:
                (folder / STOPPED).unlink(missing_ok=True)
            mirror.push(FAILURE, PAUSE, WRITER, RECORDS, STOPPED)
        return mine


@contextmanager
def driven(folder: Path, search: str) -> Iterator[None]:
    """Hold the driver's lock of a trial, in the name of a search."""
    with held(folder / DRIVER_LOCK):
        # Same file, same lock: the content only says whose it is.
        (folder / DRIVER_LOCK).write_text(search, encoding="utf-8")
        yield


def pause(mirrors: Iterable[Mirror], search: str, patience: float) -> int:
    """Ask the trials of a search that are being trained to write a checkpoint and end; wait until they have, `patience` seconds
    at most. Those that another pipeline on the same storage has trained are left alone.

    Returns:
        how many were still at it then.
    """
    left = [mirror for mirror in mirrors if _trained_for(mirror, search)]
    for mirror in left:
        (mirror.folder / PAUSE).write_text(search, encoding="utf-8")
        mirror.push(PAUSE)
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        left = [mirror for mirror in left if _trained_for(mirror, search)]
        time.sleep(_POLL)
    return len(left)


def _trained_for(mirror: Mirror, search: str) -> bool:
    if mirror.storage is None:
        return _text(mirror.folder / DRIVER_LOCK) == search and not _free(mirror.folder / WRITER_LOCK)
    mirror.pull(WRITER)
    return _text(mirror.folder / WRITER) == search


@contextmanager
def written(mirror: Mirror, search: str, patience: float) -> Iterator[bool]:
    """Hold the writer's lock of a trial, in the name of a search; as `held`."""
    with held(mirror.folder / WRITER_LOCK, patience) as mine:
        if mirror.storage is not None:
            (mirror.folder / WRITER).write_text(search, encoding="utf-8")
            mirror.push(WRITER)
        reachable = mirror.storage is not None
        try:
            yield mine
        except StorageError:
            # Another minute of retries would gain nothing; a kill leaves the note as well.
            reachable = False
            raise
        finally:
            if reachable:
                (mirror.folder / WRITER).unlink()
                mirror.push(WRITER)


def asked_to_pause(mirror: Mirror, search: str) -> bool:
    """Whether `pause` was called for this trial of this search, according to the local folder. (A note that an earlier search
    left does not count.)"""
    return _text(mirror.folder / PAUSE) == search


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _free(lock: Path) -> bool:
    with held(lock, 0.0) as mine:
        return mine


def tidy(folder: Path) -> str | None:
    """Put in order what a kill in the middle of a write left in the folder of an unfinished trial. For the one that writes.

    A folder that `pipeline.files.write_directory` was about to replace gets its name back; half-written ones go, and so does an
    outcome that is not sound. Where the latest checkpoint is missing or damaged and the one before it is sound, that one becomes
    the latest: the steps between are repeated, starting from the best model in that checkpoint.

    Returns:
        how the latest checkpoint is damaged, where the one before it took its place.
    """
    if (folder / OUTCOME).exists():
        # The run that wrote it was removing its checkpoints: what is left of them may be incomplete.
        for name in (LATEST, PREVIOUS):
            if _damage(folder / name) is not None:
                shutil.rmtree(folder / name, ignore_errors=True)
        (folder / OUTCOME).unlink()
    for old in folder.glob(".*.old"):
        name = old.name.split(".")[1]
        if not (folder / name).exists():
            old.rename(folder / name)
        else:
            shutil.rmtree(old)
    for new in folder.glob(".*.tmp"):
        if new.is_dir():
            shutil.rmtree(new)
        else:
            new.unlink()
    return _fall_back(folder / LATEST, folder / PREVIOUS)


def _fall_back(latest: Path, previous: Path) -> str | None:
    damage = _damage(latest)
    # Nothing to fall back on, or that is damaged too: whoever resumes says what is wrong with the latest.
    if damage is None or _damage(previous) is not None:
        return None
    lost = not latest.exists()
    shutil.rmtree(latest, ignore_errors=True)
    previous.rename(latest)
    return None if lost else damage


def _damage(checkpoint: Path) -> str | None:
    try:
        check_sums(checkpoint)
    except UserError as error:
        return str(error)
    return None
