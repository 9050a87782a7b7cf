"""A folder that a process writes on its own machine, and its copy in a storage that is no folder (s3://…).

Where `cluster.storage` is a folder, all processes stand in the very same one, and nothing here does anything. Elsewhere each has
a folder of its own: what one writes it pushes, and what others may have written it pulls before it looks. A file is copied as it
is. A folder (a checkpoint, a model) goes as an object by its content, and a small file that names the object is written last:
whoever pulls has the old one or the new one whole, whatever moment its writer was killed at.

There are no locks in such a storage. None is needed for a trial to be right: whoever trains it comes to the same numbers, so
that two who do so at once, by accident, only do it twice.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.files import write_text
from pipeline.storage import Storage

_REF = ".ref"


@dataclass(slots=True)
class Mirror:
    """A folder here, and the one of the same name there; `storage` None is the same folder."""

    folder: Path
    storage: Storage | None = None
    name: str = ""
    _held: dict[str, str] = field(default_factory=dict[str, str])
    """Folders' names → the objects that they are here."""
    _times: dict[str, float] = field(default_factory=dict[str, float])

    def pull(self, *names: str) -> None:
        """Bring files and folders from there; what is not there goes here as well."""
        if self.storage is None:
            return
        for name in names:
            ref = self.storage.read(f"{self.name}/{name}{_REF}")
            if ref is not None:
                if self._held.get(name) != ref or not (self.folder / name).is_dir():
                    self.storage.get(ref, self.folder / name)
                    self._held[name] = ref
                continue
            text = self.storage.read(f"{self.name}/{name}")
            if text is not None:
                write_text(self.folder / name, text)
            else:
                self._held.pop(name, None)
                _remove(self.folder / name)

    def pull_at_times(self, *names: str, seconds: float = 2.0) -> None:
        """`pull`, if the last such one of the same names is that long ago: for whoever looks many times a second."""
        if self.storage is not None and self._due(f"pull {names}", seconds):
            self.pull(*names)

    def push_at_times(self, *names: str, seconds: float = 2.0) -> None:
        """`push`, if the last such one of the same names is that long ago."""
        if self.storage is not None and self._due(f"push {names}", seconds):
            self.push(*names)

    def push(self, *names: str) -> None:
        """Send files and folders; what is not here goes there as well. An object that none of them is any more is removed."""
        if self.storage is None:
            return
        for name in names:
            here = self.folder / name
            if here.is_dir():
                digest = self.storage.put(here)
                old = self._held.get(name)
                self.storage.write(f"{self.name}/{name}{_REF}", digest)
                self._held[name] = digest
                if old is not None and old not in self._held.values():
                    self.storage.forget(old)
            elif here.is_file():
                self.storage.write(f"{self.name}/{name}", here.read_text(encoding="utf-8"))
            else:
                old = self._held.pop(name, None)
                self.storage.remove(f"{self.name}/{name}{_REF}")
                self.storage.remove(f"{self.name}/{name}")
                if old is not None and old not in self._held.values():
                    self.storage.forget(old)

    def _due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        due = now - self._times.get(what, float("-inf")) >= seconds
        if due:
            self._times[what] = now
        return due

    def has(self, *names: str) -> bool:
        """Whether one of these folders is there."""
        if self.storage is None:
            return any((self.folder / name).exists() for name in names)
        return any(self.storage.read(f"{self.name}/{name}{_REF}") is not None for name in names)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
