"""Who uses what in a storage, so that `gausscse gc` removes nothing that a run needs. It works without locks, so on S3 too.

- A run keeps a heartbeat while it works: `runs/<id>` is written once, `runs/<id>.alive` every minute. It counts as going on until
  an hour after the last heartbeat, also if it has ended.
- Before a run looks for something that may be in the storage already, it writes a stamp, `uses/<kind>.<name>`. Whatever was
  stamped or written since a run that is going on began is in use.
- Before gc removes things, it lists them in `removals/<id>`, and then looks at heartbeats and stamps once more. A stamp that gc
  does not see was therefore written after the list. So its writer reads the list after its stamp, and waits until gc is done.

All times are modification times in the storage, so no two clocks are compared.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pipeline.storage.filesystem import Entry, Place
from pipeline.utils.errors import TransientStorageError, UserError
from pipeline.utils.logs import log
from pipeline.utils.users import user_at_host

RUNS, USES, REMOVALS = "runs", "uses", "removals"
_ALIVE = ".alive"
# Seconds between two heartbeats, and after which a run without one is over. A run that is stopped or cut off from the storage for
# longer may lose things, and begin them again.
_BEAT = 60.0
OVER_AFTER = 3600.0
# The same for a removal. It ends itself if it could not renew its list in time.
_REMOVAL_BEAT = 10.0
_REMOVAL_OVER_AFTER = 300.0
# Seconds between two looks at a removal that is going on.
_POLL = 1.0
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is going on."""

    what: str
    """What it does, for people."""
    began: int
    """Nanoseconds since 1970."""


@contextmanager
def in_use(place: Place) -> Iterator[None]:
    """Keep a heartbeat in a storage while the block runs.

    It is left there, and counts for an hour more: the next stage of a `dvc repro` needs what this one has made.
    """
    name = f"{RUNS}/{uuid4().hex}"
    place.write(name, f"{Path(sys.argv[0]).stem} ({user_at_host()}, process {os.getpid()})")
    place.write(f"{name}{_ALIVE}", "")
    with _repeated(lambda: place.write(f"{name}{_ALIVE}", ""), _BEAT):
        yield


@contextmanager
def _repeated(write: Callable[[], object], seconds: float) -> Iterator[None]:
    """Repeat a write in a thread while the block runs. A storage that fails for good ends the block itself."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            with suppress(UserError):
                write()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_POLL)


def stamp_of(name: str) -> str:
    """The stamp of a thing, `objects/<digest>` or another of `pipeline.storage.inventory`."""
    return f"{USES}/{name.replace('/', '.')}"


def use(place: Place, names: Iterable[str], note: str = "") -> None:
    """Stamp things as used; returns when gc removes none of them, so call it before looking whether they exist.

    Args:
        names: `<kind>/<name>` of each.
        note: what the thing belongs to, for `gausscse gc`.
    """
    names = list(names)
    for name in names:
        place.write(stamp_of(name), note)
    waits = False
    while names and (held := _being_removed(place, names)):
        if not waits:
            log.info(f"{place.name}: `gausscse gc` is removing {held[0]}; waiting until it is done")
        waits = True
        time.sleep(_POLL)


def _being_removed(place: Place, names: Collection[str]) -> list[str]:
    lists = place.entries(REMOVALS)
    if not lists:
        return []
    # Written again, because its time is the storage's own clock.
    now = _now(place, stamp_of(next(iter(names))))
    living = [name for name, entry in lists.items() if now - entry.time < _REMOVAL_OVER_AFTER * _NS]
    listed = {removed for name in living for removed in _list(place, name)}
    return [name for name in names if name in listed]


def _list(place: Place, name: str) -> list[str]:
    try:
        text = place.read(name)
    except TransientStorageError:
        # It was renewed or removed while it was read.
        time.sleep(_POLL)
        text = place.read(name)
    return json.loads(text or "[]")


def _now(place: Place, stamp: str) -> int:
    while True:
        place.write(stamp, place.read(stamp) or "")
        # Removing the thing removes its stamp, perhaps just now.
        for entry in place.entries(stamp).values():
            return entry.time


class Removal:
    """The things that gc is about to remove. `check` must be called before each of them."""

    def __init__(self, place: Place) -> None:
        self._place, self._name, self._text = place, f"{REMOVALS}/{uuid4().hex}", "[]"
        self._renewed = 0.0

    @contextmanager
    def of(self, names: Iterable[str]) -> Iterator[None]:
        """List things as about to be removed while the block runs. A thread renews the list."""
        self._text = json.dumps(sorted(names))
        self._renew()
        with _repeated(self._renew, _REMOVAL_BEAT):
            yield
        self._place.remove(self._name)

    @property
    def began(self) -> int:
        """The storage's time when the list was written, in nanoseconds since 1970."""
        return self._place.entries(self._name)[self._name].time

    def check(self) -> None:
        """Check that the list is fresh.

        Raises:
            TransientStorageError: it could not be renewed for so long that runs may not wait any more.
        """
        if time.monotonic() - self._renewed > _REMOVAL_OVER_AFTER / 2:
            raise TransientStorageError(f"{self._place.name}: did not answer for minutes; run the command again to go on")

    def _renew(self) -> None:
        # The time before the write: the storage's own is later.
        began = time.monotonic()
        self._place.write(self._name, self._text)
        self._renewed = began


def going_on(place: Place, entries: Mapping[str, Entry], now: int) -> list[Run]:
    """The runs that are going on.

    Args:
        entries: the storage's entries below `runs`.
        now: nanoseconds since 1970.
    """
    return [
        Run(place.read(name) or "a run", entry.time)
        for name, entry in entries.items()
        if not name.endswith(_ALIVE) and not _over(entries, name, now)
    ]


def over(entries: Mapping[str, Entry], now: int) -> list[str]:
    """The entries below `runs` and `removals` of processes that have ended."""
    return [name for name, entry in entries.items() if _over(entries, name.removesuffix(_ALIVE), now, entry)]


def _over(entries: Mapping[str, Entry], name: str, now: int, entry: Entry | None = None) -> bool:
    times = [known.time for known in (entries.get(name), entries.get(f"{name}{_ALIVE}"), entry) if known is not None]
    return now - max(times) >= OVER_AFTER * _NS
