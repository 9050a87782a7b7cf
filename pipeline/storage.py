"""What travels between a project and a cluster: files and folders under a storage that both see, named by their content.

The storage is a folder or a URI that pyarrow knows (pipeline/place.py).

An object is `objects/<digest>/manifest`, the SHA-256 and name of each of its files, and those files beside it. Its digest is that
of the manifest, which is written last: an object that was not sent whole is none, and whoever fetches one can tell that it is
what was asked for.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyarrow import ArrowException

from pipeline.errors import StorageError, UserError
from pipeline.files import replacing, room_for, sha256_file, write_directory
from pipeline.place import Place

_OBJECTS = "objects"
_MANIFEST = "manifest"
_FILES = "files"
# What the one file of an object that is no folder is called in the storage.
_CONTENT = "content"
_CHUNK = 8 * 2**20
# Transfers at a time: a token store is some shards of 20 MB, a model a handful of files.
_STREAMS = 8


class NotAnObject(StorageError):
    """The object is missing, or does not match its digest."""


@dataclass(frozen=True, slots=True)
class Storage(Place):
    """A place that jobs and their users share, `cluster.storage`; a relative path starts at the project's root."""

    ASKED: ClassVar[str] = "execution.yaml: cluster.storage: got "
    ADVICE: ClassVar[str] = "; see cluster.storage (execution.yaml)"

    def put(self, path: Path) -> str:
        """Send a file or a folder, once: what the storage has already is not sent again.

        Returns:
            its digest, hex SHA-256. That of a file does not hang on its name.

        Raises:
            UserError: there is nothing at `path`.
        """
        files = (
            {p.relative_to(path).as_posix(): p for p in sorted(path.rglob("*")) if p.is_file()} if path.is_dir() else {"": path}
        )
        if not path.exists():
            raise UserError(f"{path}: there is nothing to send")
        sums = dict(zip(files, _at_once(sha256_file, files.values()), strict=True))
        manifest = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        digest = hashlib.sha256(manifest.encode()).hexdigest()
        if self.read(f"{_OBJECTS}/{digest}/{_MANIFEST}") is None:
            if self.folder is not None:
                # Of a folder with nothing in it too.
                (self.folder / _OBJECTS / digest / _FILES).mkdir(parents=True, exist_ok=True)
            _at_once(lambda name: self.send(files[name], _place(digest, name)), files)
            self.write(f"{_OBJECTS}/{digest}/{_MANIFEST}", manifest)
        return digest

    def get(self, digest: str, to: Path) -> None:
        """Fetch an object, whole or not at all, in the place of what is at `to`.

        Raises:
            NotAnObject: the object is missing, or does not match its digest.
        """
        sums = self._sums(digest)
        if "" in sums:
            to.parent.mkdir(parents=True, exist_ok=True)
            with replacing(to) as new:
                self._fetch(_place(digest, ""), new, sums[""])
            return
        with write_directory(to) as new:
            if any(not (new / name).resolve().is_relative_to(new.resolve()) for name in sums):
                raise self._damaged(f"{_OBJECTS}/{digest}/{_MANIFEST}")
            _at_once(lambda name: self._fetch(_place(digest, name), new / name, sums[name]), sums)

    def local(self, digest: str) -> Path:
        """Where an object stands on this machine, to be read only: in the storage itself where that is a folder, and else
        fetched, once a machine and user. Whoever reads it there checks it (`verify`, or sums of its own).

        Raises:
            UserError: as `get`; or the machine's folder for such objects is somebody else's.
        """
        if self.folder is not None:
            files = self.folder / _OBJECTS / digest / _FILES
            return files / _CONTENT if "" in self._sums(digest) else files
        kept = private_folder() / _OBJECTS / digest
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            # Several processes of a machine may want it at once: whoever is first puts it there, and nobody moves it again.
            with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".", suffix=".tmp") as folder:
                self.get(digest, Path(folder) / digest)
                try:
                    (Path(folder) / digest).rename(kept)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
        return kept

    def verify(self, digest: str) -> None:
        """Compare an object where `local` has it with its sums.

        Raises:
            UserError: a file is missing or differs.
        """
        here = self.local(digest)

        def check(name: str, expected: str) -> None:
            file = here / name if name else here
            if not file.is_file() or sha256_file(file) != expected:
                raise self._damaged(file.as_posix())

        _at_once(lambda item: check(*item), self._sums(digest).items())

    def _sums(self, digest: str) -> dict[str, str]:
        """Name of each of an object's files → its SHA-256; the one of an object that is a file has no name."""
        manifest = self.read(f"{_OBJECTS}/{digest}/{_MANIFEST}")
        if manifest is None:
            raise NotAnObject(f"{self.name}: has no object {digest}; it was removed, or never sent whole: run the command again")
        if hashlib.sha256(manifest.encode()).hexdigest() != digest:
            raise self._damaged(f"{_OBJECTS}/{digest}/{_MANIFEST}")
        return {name: expected for expected, _, name in (line.partition("  ") for line in manifest.splitlines())}

    def remove(self, name: str) -> None:
        """Remove a small file; it may not be there."""
        with self._errors(name), suppress(FileNotFoundError):
            self.fs.delete_file(name)

    def forget(self, digest: str) -> None:
        """Remove an object that is no longer in use, its manifest first. Files that cannot be removed stay."""
        place = f"{_OBJECTS}/{digest}"
        self.remove(f"{place}/{_MANIFEST}")
        with suppress(ArrowException, OSError):
            self.fs.delete_dir(place)

    def _fetch(self, name: str, to: Path, expected: str) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(name):
            try:
                source = self.fs.open_input_stream(name)
            except FileNotFoundError:
                raise NotAnObject(f"{self.name}: {name} was removed; run the command again") from None
            with source, room_for(to), to.open("wb") as out:
                shutil.copyfileobj(source, out, _CHUNK)
        if sha256_file(to) != expected:
            raise self._damaged(name)

    def _damaged(self, name: str) -> NotAnObject:
        return NotAnObject(f"{self.name}: {name} is not what it was sent as; remove it there and run the command again")


def everywhere(storage: str) -> bool:
    """Whether what cluster.storage says means the same place wherever one stands: a URI or an absolute path."""
    return "://" in storage or storage.startswith("/")


def share(path: Path, storage: str) -> str:
    """Put a file or folder where every node finds it; `found` on a node has it by the name that this returns.

    With a storage that is a relative path, all nodes are taken to see the same files as this machine.
    """
    if not everywhere(storage):
        return str(path)
    here = Storage.open(storage)
    if here.folder is not None and path.resolve().is_relative_to(here.folder):
        return str(path.resolve())
    digest = here.put(path)
    return str(here.local(digest)) if here.folder is not None else f"{digest}@{storage}"


def found(shared: str) -> Path:
    """Where something that was shared is on this machine; fetched if need be."""
    digest, mark, storage = shared.partition("@")
    return Path(shared) if shared.startswith("/") or not mark else Storage.open(storage).local(digest)


def private_folder() -> Path:
    """A folder of this machine and user alone, for what is fetched.

    Raises:
        UserError: somebody else made it.
    """
    folder = Path(tempfile.gettempdir()) / f"gausscse-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(f"{folder}: is not a folder of yours alone; remove it, or set TMPDIR to another place")
    return folder


def _place(digest: str, name: str) -> str:
    return f"{_OBJECTS}/{digest}/{_FILES}/{name or _CONTENT}"


def _at_once(what: Callable[[Any], Any], these: Iterable[Any]) -> list[Any]:
    """What a function gives for each, some of them at a time; the first that fails ends it."""
    with ThreadPoolExecutor(_STREAMS) as pool:
        return list(pool.map(what, these))
