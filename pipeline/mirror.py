"""A folder that a process writes on its own machine, and its copy in a storage that is no folder (s3://…).

Where `cluster.storage` is a folder, all processes stand in the very same one, and nothing here does anything. Elsewhere each has
a folder of its own: what one writes it pushes, and what others may have written it pulls before it looks. A file is copied as it
is. A folder (a checkpoint, a model) goes as an object by its content, and a small file that names the object is written last:
whoever pulls has the old one or the new one whole, whatever moment its writer was killed at.

There are no locks in such a storage, so two drivers may train the same trial at once, and not to the same numbers: sums on a GPU
are not repeatable to the bit. Files of the two are never read together:
- A checkpoint is one object with its best model in it. The pointer may come from either driver; the object has one.
- A model of a finished trial has a pointer under the digest of its weights (a `version`), which the outcome (trial.json) names.
  The driver that writes trial.json last decides which model is the trial's. The other model stays where it is.
- A driver removes checkpoints that it has replaced, and the other's pointer may still name one. A missing or damaged object is
  ignored: the trial goes on from the checkpoint before it, or starts from the beginning.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import TransientStorageError
from pipeline.files import write_text
from pipeline.storage import NotAnObject, Storage

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

    def pull(self, *names: str, version: str = "") -> list[str]:
        """Fetch files and folders from the storage; those that the storage lacks are removed here too.

        Args:
            version: which one, for folders that are kept in several versions.

        Returns:
            what is wrong with folders that a pointer names and that are missing or damaged there; both sides now lack them.
        """
        faults: list[str] = []
        if self.storage is None:
            return faults
        for name in names:
            ref = self.storage.read(self._pointer(name, version))
            if ref is not None:
                try:
                    if self._held.get(name) != ref or not (self.folder / name).is_dir():
                        self._get(ref, name)
                        self._held[name] = ref
                except NotAnObject as fault:
                    faults.append(f"{name}: {str(fault).partition(';')[0]}")
                    # Otherwise the same content would count as sent the next time.
                    self.storage.forget(ref)
                    self._held.pop(name, None)
                    _remove(self.folder / name)
                continue
            text = self.storage.read(f"{self.name}/{name}")
            if text is not None:
                write_text(self.folder / name, text)
            else:
                self._held.pop(name, None)
                _remove(self.folder / name)
        return faults

    def _get(self, ref: str, name: str) -> None:
        """Fetch an object; once more where it seems damaged, which may have happened on its way here."""
        assert self.storage is not None
        try:
            self.storage.get(ref, self.folder / name)
        except NotAnObject:
            self.storage.get(ref, self.folder / name)

    def pull_at_times(self, *names: str, seconds: float = 2.0) -> None:
        """`pull`, if the last such one of the same names is that long ago: for whoever looks many times a second."""
        if self.storage is not None and self._due(f"pull {names}", seconds):
            self.pull(*names)

    def push(self, *names: str, version: str = "") -> None:
        """Send files and folders; those that are missing here are removed there too, and so are objects no longer in use.

        Args:
            version: for folders, the digest that identifies this one. Its pointer replaces no other, and no object is removed.
        """
        if self.storage is None:
            return
        for name in names:
            here = self.folder / name
            if here.is_dir():
                digest = self.storage.put(here)
                old = self._held.get(name)
                self.storage.write(self._pointer(name, version), digest)
                self._held[name] = digest
                if not version and old is not None and old not in self._held.values():
                    self.storage.forget(old)
            elif here.is_file():
                self.storage.write(f"{self.name}/{name}", here.read_text(encoding="utf-8"))
            else:
                old = self._held.pop(name, None)
                self.storage.remove(self._pointer(name, version))
                self.storage.remove(f"{self.name}/{name}")
                if old is not None and old not in self._held.values():
                    self.storage.forget(old)

    def hand_on(self, name: str) -> str:
        """The digest of the object that a local folder is stored as, for `take` elsewhere; empty if all see the same folder, or
        if it does not exist."""
        if self.storage is None or not (self.folder / name).is_dir():
            return ""
        self.push(name)
        return self._held[name]

    def take(self, name: str, digest: str) -> None:
        """Fetch the folder whose digest another process passed on, even if the pointer has changed since.

        Raises:
            TransientStorageError: another driver has removed it since; the next attempt uses what is there then.
        """
        if self.storage is not None and digest:
            try:
                self.storage.get(digest, self.folder / name)
            except NotAnObject as fault:
                raise TransientStorageError(str(fault)) from None
            self._held[name] = digest

    def _pointer(self, name: str, version: str = "") -> str:
        return f"{self.name}/{name}{version and '-'}{version}{_REF}"

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
        return any(self.storage.read(self._pointer(name)) is not None for name in names)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
