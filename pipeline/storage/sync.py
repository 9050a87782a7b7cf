"""A folder on this machine and its copy in a remote storage (s3://…).

If `cluster.storage` is a folder, all processes use it directly, and this module does nothing. Otherwise each process has its own
local folder: it pushes what it writes, and pulls before it reads what others may have written. A file is copied as it is. For a
folder (a checkpoint, a model), the storage gets an object named by its content and last a small file that names the object,
its pointer. A pull therefore gets either the old or the new folder complete, even if the writer is killed.

A remote storage has no locks, so two drivers may train the same trial at once. Their numbers may differ, because floating-point
sums on a GPU are not bitwise repeatable. Files of the two are never mixed:
- A checkpoint is one object that includes its best model. The pointer may come from either driver; the object comes from one.
- The model of a finished trial has a pointer whose name contains the digest of its weights (a `version`), which the
  outcome (trial.json) names. The driver that writes trial.json last decides which model is the trial's. The other model stays.
- A driver removes checkpoints that it has replaced, and the other driver's pointer may still name one. A missing or damaged
  object is ignored: the trial continues from the checkpoint before it, or starts from the beginning.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pipeline.storage.object_store import MANIFEST, OBJECTS, NotAnObject, Storage
from pipeline.utils.atomic_io import write_text
from pipeline.utils.errors import TransientStorageError

REF = ".ref"
"""The end of the name of a pointer."""


@dataclass(slots=True)
class Mirror:
    """A local folder and its copy under `name` in a storage; if `storage` is None, there is no other copy."""

    folder: Path
    storage: Storage | None = None
    name: str = ""
    _held: dict[str, str] = field(default_factory=dict[str, str])
    """Folder name → digest of the object that it holds locally."""

    def pull_files(self, *names: str) -> None:
        """Download small text files; those that the storage lacks are removed locally too."""
        for name in names if self.storage is not None else ():
            text = self.storage.read(f"{self.name}/{name}")  # type: ignore[union-attr]
            if text is None:
                self._drop(name)
            else:
                write_text(self.folder / name, text)

    def pull(self, *names: str, version: str = "") -> list[str]:
        """Download folders; those that the storage lacks are removed locally too.

        Args:
            version: the version to get, where several are kept.

        Returns:
            faults of folders whose pointer names a missing or damaged object; these are then removed on both sides.
        """
        faults: list[str] = []
        if self.storage is None:
            return faults
        for name in names:
            ref = self.storage.read(self._pointer(name, version))
            if ref is None:
                self._drop(name)
                continue
            try:
                if self._held.get(name) != ref or not (self.folder / name).is_dir():
                    self.storage.get(ref, self.folder / name)
                    self._held[name] = ref
            except NotAnObject as fault:
                faults.append(f"{name}: {str(fault).partition(';')[0]}")
                # Otherwise `put` would count the same content as already sent.
                self.storage.forget(ref)
                self._drop(name)
        return faults

    def push(self, *names: str, version: str = "") -> None:
        """Upload files and folders. Those missing locally are removed in the storage too, and so are objects no longer in use.

        Args:
            version: for folders, the digest that identifies this version. It gets its own pointer, and no object is removed.
        """
        if self.storage is None:
            return
        for name in names:
            local_path = self.folder / name
            if local_path.is_file():
                self.storage.write(f"{self.name}/{name}", local_path.read_text(encoding="utf-8"))
                continue
            old = self._held.get(name)
            if local_path.is_dir():
                digest = self.storage.put(local_path)
                self.storage.write(self._pointer(name, version), digest)
                self._held[name] = digest
            else:
                self._held.pop(name, None)
                self.storage.remove(self._pointer(name, version))
                self.storage.remove(f"{self.name}/{name}")
            if not version and old is not None and old not in self._held.values():
                self.storage.forget(old)

    def write(self, name: str, text: str) -> None:
        """Write a text file on both sides, the storage first, so that a `pull` in another thread never removes it locally."""
        if self.storage is not None:
            self.storage.write(f"{self.name}/{name}", text)
        write_text(self.folder / name, text)

    def for_another_thread(self) -> Mirror:
        """The same folder and storage, with a separate record of downloads; each such record belongs to one thread."""
        return Mirror(self.folder, self.storage, self.name)

    def hand_on(self, name: str) -> str:
        """Upload a local folder and return its digest, for `take` in another process; empty if all processes see the same folder,
        or if it does not exist."""
        if self.storage is None or not (self.folder / name).is_dir():
            return ""
        self.push(name)
        return self._held[name]

    def take(self, name: str, digest: str) -> None:
        """Download the folder with a digest from `hand_on`, even if its pointer has changed since.

        Raises:
            TransientStorageError: another driver has removed it since; a retry uses what the storage has then.
        """
        if self.storage is not None and digest:
            try:
                self.storage.get(digest, self.folder / name)
            except NotAnObject as fault:
                raise TransientStorageError(str(fault)) from None
            self._held[name] = digest

    def _drop(self, name: str) -> None:
        self._held.pop(name, None)
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _pointer(self, name: str, version: str = "") -> str:
        return f"{self.name}/{name}{version and '-'}{version}{REF}"

    def whole(self, name: str, version: str) -> bool:
        """True if the storage has a version of a folder with all its files."""
        assert self.storage is not None
        ref = self.storage.read(self._pointer(name, version))
        return ref is not None and self.storage.read(f"{OBJECTS}/{ref}/{MANIFEST}") is not None

    def has(self, *names: str) -> bool:
        """True if at least one of these folders exists."""
        if self.storage is None:
            return any((self.folder / name).exists() for name in names)
        return any(self.storage.read(self._pointer(name)) is not None for name in names)


@cache
def mirror_of(folder: Path, remote: str | None, name: str) -> Mirror:
    """The mirror of a local folder, which is created if the storage is remote.

    Args:
        remote: cluster.storage if it is remote, else None.
        name: the folder's name in the remote storage.
    """
    if remote is None:
        return Mirror(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return Mirror(folder, Storage.open(remote), name)
