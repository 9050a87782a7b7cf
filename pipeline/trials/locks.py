"""Locks of the trial folders under `<storage>/trials`, and the cleanup after a kill.

Each folder has two locks. The process that runs the trial (its driver) holds `driver.lock` until it is done: a second pipeline on
the same storage waits, and then finds the trial finished. The one worker that writes holds `writer.lock`: a new writer waits
until the previous one is gone, even if that one's driver has already died. The kernel releases both locks when their holder dies;
a file server does so after it has not heard from the host for a while. A remote storage (s3://…) has no locks;
`pipeline.storage.sync` explains why none is needed there.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.storage.filesystem import storage_error
from pipeline.trials.trial import LATEST, OUTCOME, PREVIOUS
from pipeline.utils.atomic_io import check_sums
from pipeline.utils.errors import UserError, passes

DRIVER_LOCK = "driver.lock"
WRITER_LOCK = "writer.lock"


@contextmanager
def held(file: Path, patience: float | None = None, waits: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Hold a lock while the block runs; yields whether it was obtained. Its folder is created if there is none.

    If others hold the lock for longer than `patience` seconds, the block runs without it. If `patience` is None, wait forever.
    `waits` is called once if others hold it.

    Raises:
        UserError: the file system does not support locks.
        TransientStorageError: its server is temporarily unavailable.
    """
    deadline = None if patience is None else time.monotonic() + patience
    said = False
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        while not (mine := _try(stream.fileno(), file)) and (deadline is None or time.monotonic() < deadline):
            if not said:
                waits()
            said = True
            time.sleep(0.1)
        yield mine


def _try(descriptor: int, file: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if passes(error):
            raise storage_error(str(file), error) from None
        raise UserError(
            f"{file}: the file system has no locks ({error.strerror}), so two runs could write to one folder; "
            "set cluster.storage (execution.yaml) to a folder on one that has locks"
        ) from None
    return True


def tidy(folder: Path) -> str | None:
    """Clean up the folder of an unfinished trial after a kill in the middle of a write. Only the writer may call this.

    A folder that `write_directory` was about to replace gets its name back. Half-written files and folders are removed, and so is
    an unsound outcome. If the latest checkpoint is missing or damaged and the previous one is sound, the previous becomes the
    latest: the steps in between are repeated, starting from that checkpoint's best model.

    Returns:
        how the latest checkpoint is damaged, if the previous one replaced it.
    """
    if (folder / OUTCOME).exists():
        # The run that wrote this outcome was removing its checkpoints; what remains of them may be incomplete.
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
    latest, previous = folder / LATEST, folder / PREVIOUS
    damage = _damage(latest)
    # The latest is sound, or no sound checkpoint precedes it; loading it then reports its damage.
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
