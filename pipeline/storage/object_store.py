"""Files and folders that a project and a cluster exchange through a shared storage, named by their content.

The storage is a folder or a URI that pyarrow supports (pipeline/storage/filesystem.py).

An object is a folder `objects/<digest>/` with its files and a `manifest`, which lists the SHA-256 and name of each file. The
object's digest is the SHA-256 of the manifest, so a download can be checked. The manifest is written last, so an incomplete
upload does not count as an object.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyarrow import ArrowException, NativeFile, OSFile

from pipeline.config.paths import home
from pipeline.storage.filesystem import Place
from pipeline.utils.atomic_io import replacing, room_for, sha256_file, write_directory
from pipeline.utils.errors import StorageError, UserError

OBJECTS = "objects"
"""The folder of all objects in a storage."""
USES = "uses"
"""The folder of the stamps (`Storage.use`)."""
MANIFEST = "manifest"
"""The file of an object that lists the others; it is written last."""
_FILES = "files"
# Name in the storage of the content of a single-file object.
_CONTENT = "content"
# Of the place for temporary files, if Ray's sockets are to have names that are short enough.
_LONG = 15


class NotAnObject(StorageError):
    """The object is missing, or does not match its digest."""


@dataclass(frozen=True, slots=True)
class Storage(Place):
    """The place that jobs and their users share (`cluster.storage`); a relative path starts at the project's root."""

    ASKED: ClassVar[str] = "execution.yaml: cluster.storage: got "
    ADVICE: ClassVar[str] = "; see cluster.storage (execution.yaml)"

    def use(self, name: str, note: str = "") -> None:
        """Stamp an item as used now, so that `gausscse gc` keeps it; call it before looking whether the item exists.

        Args:
            name: `<kind>/<name>`, as in `pipeline.storage.inventory`.
            note: the model that the item belongs to, for `gausscse gc`.
        """
        self.write(stamp_of(name), note)

    def put(self, path: Path) -> str:
        """Upload a file or a folder, unless the storage already has it.

        Returns:
            its digest, hex SHA-256. The digest of a file does not depend on its name.

        Raises:
            UserError: `path` does not exist.
        """
        files, manifest = _listed(path)
        digest = hashlib.sha256(manifest.encode()).hexdigest()
        self.use(f"{OBJECTS}/{digest}")
        if self.read(f"{OBJECTS}/{digest}/{MANIFEST}") is None:
            if self.folder is not None:
                # Also for an empty folder.
                (self.folder / OBJECTS / digest / _FILES).mkdir(parents=True, exist_ok=True)
            at_once(lambda name: self.send(files[name], _place(digest, name)), files)
            self.write(f"{OBJECTS}/{digest}/{MANIFEST}", manifest)
        return digest

    def get(self, digest: str, to: Path, without: str | None = None) -> None:
        """Download an object atomically, replacing what is at `to`; `without` is the start of the names of files to leave out.

        Raises:
            NotAnObject: the object is missing, or does not match its digest.
        """
        sums = {name: key for name, key in self._sums(digest).items() if without is None or not name.startswith(without)}
        if "" in sums:
            to.parent.mkdir(parents=True, exist_ok=True)
            with replacing(to) as new:
                self.fetch(_place(digest, ""), new, sums[""])
            return
        with write_directory(to) as new:
            if any(not (new / name).resolve().is_relative_to(new.resolve()) for name in sums):
                raise self._damaged(f"{OBJECTS}/{digest}/{MANIFEST}")
            at_once(lambda name: self.fetch(_place(digest, name), new / name, sums[name]), sums)

    def local(self, digest: str, without: str | None = None) -> Path:
        """The object's path on this machine, for reading only. If the storage is a folder, that is its place there; otherwise it
        is downloaded, once per machine and user, but not the files `without` (as in `get`). The caller checks the content
        (`verify`, or checksums of its own).

        Raises:
            UserError: as in `get`; or the machine's folder for such objects belongs to another user.
        """
        self.use(f"{OBJECTS}/{digest}")
        if self.folder is not None:
            files = self.folder / OBJECTS / digest / _FILES
            return files / _CONTENT if "" in self._sums(digest) else files
        local_copy = private_folder() / (OBJECTS if without is None else "parts") / digest
        if not local_copy.exists():
            local_copy.parent.mkdir(exist_ok=True)
            # Several processes of a machine may want it at once: the first one to finish puts it in place, and nobody moves it.
            with tempfile.TemporaryDirectory(dir=local_copy.parent, prefix=".", suffix=".tmp") as folder:
                self.get(digest, Path(folder) / digest, without)
                try:
                    (Path(folder) / digest).rename(local_copy)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
        return local_copy

    def verify(self, digest: str) -> None:
        """Check the local copy of an object (`local`) against its checksums.

        Raises:
            UserError: a file is missing or differs.
        """
        path = self.local(digest)

        def check(name: str, expected: str) -> None:
            file = path / name if name else path
            if not file.is_file() or sha256_file(file) != expected:
                raise self._damaged(file.as_posix())

        at_once(lambda item: check(*item), self._sums(digest).items())

    def _sums(self, digest: str) -> dict[str, str]:
        """File name → SHA-256 for each of an object's files; a single-file object has the empty name."""
        manifest = self.read(f"{OBJECTS}/{digest}/{MANIFEST}")
        if manifest is None:
            raise NotAnObject(f"{self.name}: has no object {digest}; it was removed, or never sent completely: run again")
        if hashlib.sha256(manifest.encode()).hexdigest() != digest:
            raise self._damaged(f"{OBJECTS}/{digest}/{MANIFEST}")
        return {name: expected for expected, _, name in (line.partition("  ") for line in manifest.splitlines())}

    def forget(self, digest: str) -> None:
        """Remove an unused object, its manifest first. Files that cannot be removed stay."""
        place = f"{OBJECTS}/{digest}"
        self.remove(f"{place}/{MANIFEST}")
        self.remove(stamp_of(place))
        with suppress(ArrowException, OSError):
            self.fs.delete_dir(place)

    def fetch(self, name: str, to: Path, expected: str) -> None:
        """Download a file and check its SHA-256.

        Raises:
            NotAnObject: it is missing, or has another sum.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(name):
            try:
                source = self.fs.open_input_stream(name)
            except FileNotFoundError:
                raise NotAnObject(f"{self.name}: {name} was removed; run the command again") from None
            with source, room_for(to), to.open("wb") as out:
                shutil.copyfileobj(source, out, 8 * 2**20)
        if sha256_file(to) != expected:
            raise self._damaged(name)

    def _damaged(self, name: str) -> NotAnObject:
        return NotAnObject(f"{self.name}: {name} differs from what was sent; remove it there and run the command again")


def stamp_of(name: str) -> str:
    """The stamp of an item; its modification time says when the item was last used."""
    return f"{USES}/{name.replace('/', '.')}"


def _listed(path: Path) -> tuple[dict[str, Path], str]:
    """The files to send, by their names in the object, and the manifest."""
    files = {p.relative_to(path).as_posix(): p for p in sorted(path.rglob("*")) if p.is_file()} if path.is_dir() else {"": path}
    if not path.exists():
        raise UserError(f"{path}: there is nothing to send")
    sums = dict(zip(files, at_once(sha256_file, files.values()), strict=True))
    return files, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def everywhere(storage: str) -> bool:
    """True if this cluster.storage means the same place in every directory and on every machine: a URI or an absolute path."""
    return "://" in storage or storage.startswith("/")


def share(path: Path, storage: str) -> str:
    """Put a file or folder where every node can find it; returns a name that `found` resolves on a node.

    If the storage is a relative path, all nodes are assumed to see the files of this project as this machine does, but no others,
    such as those in a temporary folder.
    """
    root = home(Path.cwd())
    if not everywhere(storage):
        if path.absolute().is_relative_to(root):
            return str(path.absolute())
        storage = str(root / storage)
    opened_storage = Storage.open(storage)
    if opened_storage.folder is not None and path.resolve().is_relative_to(opened_storage.folder):
        return str(path.resolve())
    return shared_name(opened_storage.put(path), storage)


def shared_name(digest: str, storage: str) -> str:
    """The name that `found` resolves on a node, for an object of a storage."""
    opened_storage = Storage.open(storage)
    return str(opened_storage.local(digest)) if opened_storage.folder is not None else f"{digest}@{storage}"


def found(shared: str) -> Path:
    """The local path of a shared file or folder, downloaded if necessary."""
    digest, mark, storage = shared.partition("@")
    return Path(shared) if shared.startswith("/") or not mark else Storage.open(storage).local(digest)


@contextmanager
def opened(shared: str) -> Iterator[NativeFile]:
    """A shared file to read from any position, without downloading it."""
    digest, mark, storage = shared.partition("@")
    if shared.startswith("/") or not mark:
        with OSFile(shared) as file:
            yield file
    else:
        with Storage.open(storage).opened(_place(digest, "")) as file:
            yield file


def place_of(shared: str) -> tuple[Storage, str, str]:
    """The storage of a shared folder, the prefix of its files there, and its digest; empty if this node sees the folder."""
    digest, mark, storage = shared.partition("@")
    if shared.startswith("/") or not mark:
        return Storage.open(shared), "", ""
    return Storage.open(storage), f"{OBJECTS}/{digest}/{_FILES}/", digest


def private_folder(*, short: bool = False) -> Path:
    """A folder on this machine for downloads, private to this user.

    Args:
        short: below /tmp if the usual place has a long name: names of sockets have at most 107 characters, on macOS 103.

    Raises:
        UserError: the folder exists but is not private to this user.
    """
    place = tempfile.gettempdir()
    folder = Path("/tmp" if short and len(place) > _LONG else place) / f"gausscse-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise UserError(f"{folder}: is not a folder that only you can use; remove it, or set TMPDIR to another folder")
    return folder


def _place(digest: str, name: str) -> str:
    return f"{OBJECTS}/{digest}/{_FILES}/{name or _CONTENT}"


def at_once(what: Callable[[Any], Any], these: Iterable[Any]) -> list[Any]:
    """Apply a function to each item, several in parallel; the first error ends it."""
    # A token store is a few shards of 20 MB, a model a handful of files.
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(what, these))


@contextmanager
def storage_here(storage: str, root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yields this process's folder for the storage, and the storage's name if it is remote (the folder is then temporary)."""
    opened = Storage.open(storage, home(root))
    if opened.folder is not None:
        yield opened.folder, None
    else:
        with tempfile.TemporaryDirectory(prefix="storage-", dir=private_folder()) as temporary:
            yield Path(temporary), storage
