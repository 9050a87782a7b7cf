"""File access through pyarrow, for a path (`/mnt/team/gausscse`) or a URI (`s3://bucket/prefix`, with options after a `?`:
`endpoint_override=host:port`, `scheme=http`, `region=...`). Credentials come from the environment.

All file systems of this project are opened here, so that errors are handled the same way. pyarrow's own retry strategy
repeats requests after temporary S3 errors (503 SlowDown, 500, a lost connection, no answer), for about a minute by default. If
they still fail, the error is a `TransientStorageError`. Errors that a retry cannot fix (403, no such bucket) raise a
`StorageError` at once.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from pyarrow import ArrowException, NativeFile
from pyarrow.fs import (
    AwsDefaultS3RetryStrategy,
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    LocalFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)

from pipeline.utils.atomic_io import replacing, room_for
from pipeline.utils.errors import StorageError, TransientStorageError, UserError, first_line, passes
from pipeline.utils.uris import without_password

# Timeouts in seconds: to connect, and without a byte of an answer. (pyarrow's documentation says that Linux ignores the second.
# With pyarrow 25, curl drops a connection that moves less than a byte a second for this long, in whole seconds.)
_CONNECT_S, _SILENT_S = 5.0, 10.0
# AWS SDK error names and HTTP statuses that a retry cannot fix.
_PERMANENT = re.compile(
    r"AWS Error (ACCESS_DENIED|NO_SUCH_\w+|INVALID_\w+|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT|MISSING_\w+"
    r"|INCOMPLETE_SIGNATURE|OPT_IN_REQUIRED|VALIDATION|RESOURCE_NOT_FOUND|MALFORMED_\w+|CLIENT_SIGNING_FAILURE|REQUEST_TIME_TOO_SKEWED"
    r"|REQUEST_EXPIRED)|HTTP status (3\d\d|4(?!08|25|29)\d\d)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a `Place`: its size in bytes, and when it was written, in nanoseconds since 1970 by the file system's clock."""

    bytes: int
    time: int


@dataclass(frozen=True, slots=True)
class Place:
    """A folder on some file system. Every method raises `UserError` if the folder is unreachable or access is refused."""

    name: str
    """Its name for messages, without secrets."""
    fs: SubTreeFileSystem
    folder: Path | None
    """The local folder; None if the file system is remote."""

    # Prefix of the message for an invalid name, and suffix for an error of the file system.
    ASKED: ClassVar[str] = ""
    ADVICE: ClassVar[str] = ""

    @classmethod
    def open(cls, name: str, home: Path = Path("/")) -> Self:
        """Open the folder with that name, which need not exist yet; a relative path starts at `home`.

        Raises:
            UserError: pyarrow does not know the scheme or an option.
        """
        base, path = _file_system(name, home, cls.ASKED)
        local = Path(path) if isinstance(base, LocalFileSystem) else None
        return cls(without_password(name), SubTreeFileSystem(path, base), local)

    def read(self, name: str) -> str | None:
        """The text of a small file; None if it does not exist."""
        data = self.read_bytes(name)
        return None if data is None else data.decode("utf-8")

    def read_bytes(self, name: str, most: int | None = None) -> bytes | None:
        """The content of a file, or `most` bytes of it; None if it does not exist."""
        with self._errors(name):
            try:
                with self.fs.open_input_stream(name) as stream:
                    return stream.read(most)
            except FileNotFoundError:
                return None

    @contextmanager
    def opened(self, name: str) -> Iterator[NativeFile]:
        """A file to read from any position."""
        with self._errors(name), self.fs.open_input_file(name) as file:
            yield file

    def write(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        self._copy(lambda: io.BytesIO(text.encode()), name)

    def send(self, file: Path, name: str) -> None:
        """Upload a local file atomically."""
        self._copy(lambda: file.open("rb"), name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors(name), suppress(FileNotFoundError):
            self.fs.delete_file(name)

    def _copy(self, opened: Callable[[], BinaryIO], name: str) -> None:
        with (
            self._errors(name),
            opened() as source,
            self._writing(name) as target,
            self.fs.open_output_stream(target) as stream,
        ):
            shutil.copyfileobj(source, stream, 8 * 2**20)

    def names(self) -> set[str]:
        """Names of the folder's entries, without hidden ones (a kill may leave some); empty if the folder does not exist."""
        if self.folder is not None and self.folder.is_file():
            raise UserError(f"{self.name}: is a file; name a folder")
        with self._errors(""):
            entries = {info.base_name for info in self.fs.get_file_info(FileSelector("", allow_not_found=True))}
        return {name for name in entries if not name.startswith(".")}

    def entries(self, below: str = "") -> dict[str, Entry]:
        """Every file below a folder, or the single file of that name, hidden ones included; files that vanish meanwhile are
        left out.

        Returns:
            name → size and time, sorted.
        """
        with self._errors(below):
            if self.folder is not None:
                return dict(sorted(_walked(self.folder, self.folder / below)))
            info = self.fs.get_file_info(below) if below else None
            single = [info] if info is not None and info.type == FileType.File else []
            infos = single or self.fs.get_file_info(FileSelector(below, recursive=True, allow_not_found=True))
            return {i.path: Entry(i.size, i.mtime_ns) for i in sorted(infos, key=lambda i: i.path) if i.type == FileType.File}

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        """The name to write a file to, so that it appears atomically: S3 does so itself; a local file is renamed at the end."""
        if self.folder is None:
            yield name
            return
        final = self.folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        with room_for(final), replacing(final) as new:
            yield new.relative_to(self.folder).as_posix()

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ArrowException, OSError) as error:
            raise storage_error(f"{self.name}: {name}".removesuffix(": "), error, self.ADVICE) from None


def _walked(root: Path, path: Path) -> Iterator[tuple[str, Entry]]:
    """`Place.entries` of a local folder. pyarrow gives up if a file vanishes while it lists."""
    try:
        if path.is_dir() and not path.is_symlink():
            for below in path.iterdir():
                yield from _walked(root, below)
        else:
            info = path.lstat()
            yield path.relative_to(root).as_posix(), Entry(info.st_size, info.st_mtime_ns)
    except FileNotFoundError:
        return
    except PermissionError:
        # The disk's own, such as lost+found. It is listed as a file, so it is not taken for empty.
        if path == root:
            raise
        yield path.relative_to(root).as_posix(), Entry(0, path.lstat().st_mtime_ns)


def parquet_files(name: str) -> tuple[FileSystem, dict[str, str]]:
    """The Parquet files below a folder (a path or a URI), or the single file that `name` points to.

    Returns:
        pyarrow's file system; name relative to the folder (for a single file, its base name) → path there, sorted.

    Raises:
        UserError: there are no such files, or the folder cannot be listed.
    """
    shown = without_password(name)
    fs, path = _file_system(name, Path.cwd())
    try:
        info = fs.get_file_info(path)
        if info.type == FileType.File:
            # The path is resolved: a link of DVC's would have the name of its target.
            return fs, {info.base_name if "://" in name else Path(name).name: path}
        if info.type == FileType.NotFound:
            raise UserError(f"{shown}: nothing there; name a Parquet file or a folder of such files")
        below = _below(fs, path, {os.path.realpath(path)})
    except (ArrowException, OSError) as error:
        raise storage_error(shown, error) from None
    found = [entry.path for entry in below if entry.type == FileType.File and entry.extension == "parquet"]
    files = {Path(location).relative_to(path): location for location in found}
    # Every reader of Parquet folders skips files and folders whose names begin with these characters.
    visible = {name.as_posix(): location for name, location in files.items() if not any(part[0] in "_." for part in name.parts)}
    if not visible:
        raise UserError(f"{shown}: no file *.parquet below it; name a Parquet file or a folder of them")
    return fs, dict(sorted(visible.items()))


def _below(fs: FileSystem, folder: str, seen: set[str]) -> list[FileInfo]:
    """What is below a folder. One that was `seen`, through a link, is not entered again: links may lead in a circle."""
    if not isinstance(fs, LocalFileSystem):
        return fs.get_file_info(FileSelector(folder, recursive=True))
    found: list[FileInfo] = fs.get_file_info(FileSelector(folder))
    folders = [info.path for info in found if info.type == FileType.Directory]
    for path in sorted(folders, key=lambda path: (Path(path).is_symlink(), path)):
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            found += _below(fs, path, seen)
    return found


def parquet_file(name: str, file: str) -> tuple[FileSystem, str]:
    """File system and path of one of `parquet_files`, without listing the folder."""
    fs, path = _file_system(name, Path.cwd())
    try:
        return fs, path if fs.get_file_info(path).type == FileType.File else f"{path}/{file}"
    except (ArrowException, OSError) as error:
        raise storage_error(without_password(name), error) from None


def storage_error(where: str, error: Exception, advice: str = "") -> StorageError:
    """Convert a file system's error to `TransientStorageError` or `StorageError`, as one line that begins with `where`."""
    if isinstance(error, OSError) and error.errno is not None:
        passing = passes(error)
    else:
        passing = isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not _PERMANENT.search(str(error))
    kind = TransientStorageError if passing else StorageError
    return kind(f"{where}: {first_line(error)}{advice}")


def _file_system(name: str, home: Path, asked: str = "") -> tuple[FileSystem, str]:
    if "://" not in name:
        return LocalFileSystem(), str((home / name).resolve())
    if name.startswith("s3://") and "AWS_ACCESS_KEY_ID" in os.environ:
        # The SDK asks EC2's metadata service whenever it opens a file system, also when it needs nothing from it. Outside EC2 it
        # may wait three seconds each time.
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    try:
        fs, path = FileSystem.from_uri(name)
        return (_patient(fs) if isinstance(fs, S3FileSystem) else fs), path
    except (ArrowException, ValueError) as error:
        raise UserError(f"{asked}{without_password(name)!r}: {first_line(error)}") from None
    except OSError as error:
        raise storage_error(without_password(name), error) from None


def _patient(fs: S3FileSystem) -> S3FileSystem:
    """The same file system with this project's retries and timeouts, which a URI cannot express; pyarrow's `__reduce__` gives its
    other arguments."""
    # As in all AWS libraries; the SDK's strategy counts retries, not attempts. Its "default" strategy waits 25 ms times a power
    # of two between attempts: 51 seconds in total for 11 retries. (Its "standard" strategy has one budget of retries for all
    # requests of a process, and eight streams use it up within one outage.)
    attempts = os.environ.get("AWS_MAX_ATTEMPTS", "")
    retries = (int(attempts) if attempts.isdecimal() and int(attempts) > 0 else 12) - 1
    made_of: dict[str, object] = fs.__reduce__()[1][0]
    strategy = AwsDefaultS3RetryStrategy(max_attempts=retries)
    return S3FileSystem(**{**made_of, "retry_strategy": strategy, "connect_timeout": _CONNECT_S, "request_timeout": _SILENT_S})
