"""What a storage holds, thing by thing: trials, relation heads, scores, work, objects, remains of killed processes, the rest."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pyarrow import ArrowException

from pipeline.storage.filesystem import Entry, Place
from pipeline.storage.object_store import OBJECTS, Storage
from pipeline.storage.sync import REF
from pipeline.storage.uses import REMOVALS, RUNS, USES, stamp_of

TRIALS, SCORES, RELATIONS, WORK = "trials", "scores", "relations", "work"
LEFTOVERS, UNKNOWN = "leftovers", "unknown"
KINDS = (TRIALS, RELATIONS, SCORES, WORK, OBJECTS, LEFTOVERS, UNKNOWN)
"""The kinds, in the order in which things are removed: what refers to others goes first."""
_NAME = "[0-9a-f]{64}"
_KNOWN = re.compile(
    rf"(?:(?P<kind>{TRIALS}|{WORK}|{OBJECTS})/(?P<name>{_NAME})/."
    rf"|(?P<pair>{SCORES}|{RELATIONS})/(?P<key>{_NAME})(?:/.|{re.escape(REF)}$))"
)
# A write that was killed, or a removal that was.
_REMAINS = re.compile(
    rf"(?:(?:{TRIALS}|{SCORES}|{RELATIONS})/\.{_NAME}\.[0-9a-f]+\.(?:tmp|old|gone)"
    rf"|(?:{RUNS}|{USES}|{REMOVALS})/\.[^/]+\.[0-9a-f]{{32}}\.tmp)(?=/|$)"
)
_GONE = ".gone"


@dataclass(frozen=True, slots=True)
class Thing:
    """Something in the storage that is kept or removed as a whole."""

    kind: str
    name: str
    """`<kind>/<name>`, or its path if the kind is `leftovers` or `unknown`."""
    files: dict[str, Entry] = field(default_factory=dict[str, Entry])

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def written(self) -> int:
        """When it was last written, in nanoseconds since 1970."""
        return max(entry.time for entry in self.files.values())

    @property
    def key(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]

    @property
    def pointers(self) -> list[str]:
        """The files that name an object (`pipeline.storage.sync`)."""
        return [file for file in self.files if file.endswith(REF)]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything in a storage."""

    things: dict[str, Thing]
    """By name, in the order of `KINDS`."""
    stamps: dict[str, Entry]
    runs: dict[str, Entry]
    removals: dict[str, Entry]

    @staticmethod
    def of(place: Place) -> Inventory:
        """List a storage.

        Raises:
            StorageError: it cannot be listed.
        """
        things: dict[str, Thing] = {}
        own: dict[str, dict[str, Entry]] = {USES: {}, RUNS: {}, REMOVALS: {}}
        for path, entry in place.entries().items():
            kind, name = _classed(path)
            if kind in own:
                own[kind][path] = entry
            else:
                things.setdefault(name, Thing(kind, name)).files[path] = entry
        ordered = sorted(things.values(), key=lambda thing: (KINDS.index(thing.kind), thing.name))
        return Inventory({thing.name: thing for thing in ordered}, own[USES], own[RUNS], own[REMOVALS])

    def used(self, thing: Thing) -> int:
        """When a thing was last written or stamped as used, in nanoseconds since 1970."""
        stamp = self.stamps.get(stamp_of(thing.name))
        return max(thing.written, stamp.time if stamp else 0)


def _classed(path: str) -> tuple[str, str]:
    """Kind and name of the thing that a file belongs to."""
    if remains := _REMAINS.match(path):
        return LEFTOVERS, remains[0]
    if known := _KNOWN.match(path):
        kind, key = known["kind"] or known["pair"], known["name"] or known["key"]
        return kind, f"{kind}/{key}"
    top, _, rest = path.partition("/")
    if rest and top in (USES, RUNS, REMOVALS) and "/" not in rest:
        return top, path
    return UNKNOWN, "/".join(path.split("/")[:2])


def remove(storage: Storage, thing: Thing) -> None:
    """Remove a thing that is not a trial.

    A kill in the middle leaves nothing that is taken for the whole: a pointer and a manifest go before what they are about, and a
    folder is renamed before it is emptied.
    """
    if thing.kind == OBJECTS:
        storage.forget(thing.key)
    elif thing.kind in (SCORES, RELATIONS) and storage.folder is not None:
        discard(storage, thing.name)
    else:
        remove_files(storage, thing.name, list(thing.files))


def discard(storage: Storage, name: str) -> None:
    """Remove a folder of a storage that is a folder: it is gone for others at once."""
    assert storage.folder is not None
    path = storage.folder / name
    gone = path.with_name(f".{path.name}.{uuid4().hex}{_GONE}")
    with suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_files(storage: Storage, folder: str, files: Sequence[str]) -> None:
    """Remove files in this order, then the rest of their folder."""
    for file in files:
        storage.remove(file)
    # S3 shows an empty folder where files were.
    with suppress(ArrowException, OSError):
        storage.fs.delete_dir(folder)
