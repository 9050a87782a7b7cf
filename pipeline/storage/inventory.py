"""What a storage holds, item by item: trials, relation heads, scores, work, objects, remains of killed processes, the rest."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pyarrow import ArrowException

from pipeline.config.paths import RELATIONS, SCORES, TRIALS, WORK
from pipeline.storage.filesystem import Entry, Place
from pipeline.storage.object_store import OBJECTS, USES, Storage
from pipeline.storage.sync import REF

LEFTOVERS, UNKNOWN = "leftovers", "unknown"
KINDS = (TRIALS, RELATIONS, SCORES, WORK, OBJECTS, LEFTOVERS, UNKNOWN)
"""The kinds, in the order in which items are removed: what refers to others goes first."""
_KIND, _NAME = "|".join(KINDS[:5]), "[0-9a-f]{64}"
_STAMP = re.compile(rf"{USES}/({_KIND})\.({_NAME})")
_KNOWN = re.compile(rf"({_KIND})/{_NAME}(?=/|{re.escape(REF)}$)")
# A write that was killed, or a removal that was.
_REMAINS = re.compile(rf"(?:(?:{_KIND})/\.{_NAME}\.[0-9a-f]+\.(?:tmp|old|gone)|{USES}/\.[^/]+\.[0-9a-f]{{32}}\.tmp)(?=/|$)")


@dataclass(frozen=True, slots=True)
class Item:
    """Something in the storage that is kept or removed as a whole."""

    kind: str
    name: str
    """`<kind>/<name>`, or its path if the kind is `leftovers` or `unknown`."""
    files: dict[str, Entry] = field(default_factory=dict[str, Entry])
    """Its stamp (`Storage.use`) is one of them."""

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def used(self) -> int:
        """When it was last written or used, in nanoseconds since 1970."""
        return max(entry.time for entry in self.files.values())

    @property
    def pointers(self) -> list[str]:
        """The files that name an object (`pipeline.storage.sync`)."""
        return [file for file in self.files if file.endswith(REF)]


def items_of(place: Place) -> list[Item]:
    """Everything in a storage, in the order of `KINDS`.

    Raises:
        StorageError: it cannot be listed.
    """
    items: dict[str, Item] = {}
    for path, entry in place.entries().items():
        kind, name = _classed(path)
        items.setdefault(name, Item(kind, name)).files[path] = entry
    return sorted(items.values(), key=lambda item: (KINDS.index(item.kind), item.name))


def _classed(path: str) -> tuple[str, str]:
    """Kind and name of the item that a file belongs to."""
    if remains := _REMAINS.match(path):
        return LEFTOVERS, remains[0]
    if stamp := _STAMP.fullmatch(path):
        return stamp[1], f"{stamp[1]}/{stamp[2]}"
    if known := _KNOWN.match(path):
        return known[1], known[0]
    return UNKNOWN, "/".join(path.split("/")[:2])


def remove(storage: Storage, item: Item, first: Iterable[str] = ("manifest",)) -> None:
    """Remove an item. A kill in the middle leaves nothing that is taken for the whole.

    In a folder, its folder is renamed before it is emptied; links in it are not followed.

    Args:
        first: the files that say that it is whole. On S3 they go first.
    """
    early = [f"{item.name}/{name}" for name in first]
    files = sorted(item.files, key=lambda file: early.index(file) if file in early else len(early))
    if storage.folder is not None and (path := storage.folder / item.name).is_dir():
        # Others who remove or replace it at the same time may have been faster.
        with suppress(FileNotFoundError):
            if item.kind != LEFTOVERS:
                path = path.rename(path.with_name(f".{path.name}.{uuid4().hex}.gone"))
            shutil.rmtree(path, ignore_errors=True)
        files = [file for file in files if not file.startswith(f"{item.name}/")]
    for file in files:
        storage.remove(file)
    if storage.folder is None:
        # S3 shows an empty folder where files were.
        with suppress(ArrowException, OSError):
            storage.fs.delete_dir(item.name)
