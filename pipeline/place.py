"""Folders wherever pyarrow can go: a path (`/mnt/team/gausscse`), or a URI (`s3://bucket/prefix`, options behind a `?`:
`endpoint_override=host:port`, `scheme=http`, `region=...`). Credentials are the environment's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, SubTreeFileSystem

from pipeline.errors import UserError
from pipeline.files import replacing, room_for
from pipeline.uris import without_password

_CHUNK = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Place:
    """A folder on some file system. Every method raises `UserError` where it cannot be reached or refuses."""

    name: str
    """As people know it, without what may be secret."""
    full_name: str
    fs: SubTreeFileSystem
    folder: Path | None
    """Where it is on this machine; None for one that is not a folder."""

    # Before a name that makes no sense, and behind what a file system says.
    ASKED: ClassVar[str] = ""
    ADVICE: ClassVar[str] = ""

    @classmethod
    def open(cls, name: str, home: Path = Path("/")) -> Self:
        """The folder of that name, which need not be there; a relative path starts at `home`.

        Raises:
            UserError: pyarrow knows no such scheme or option.
        """
        base, path = _file_system(name, home, cls.ASKED)
        local = Path(path) if isinstance(base, LocalFileSystem) else None
        return cls(without_password(name), name, SubTreeFileSystem(path, base), local)

    def read(self, name: str) -> str | None:
        """The text of a small file; None where there is none."""
        data = self.read_bytes(name)
        return None if data is None else data.decode("utf-8")

    def read_bytes(self, name: str) -> bytes | None:
        """What is in a file; None where there is none."""
        with self._errors(name):
            try:
                with self.fs.open_input_stream(name) as stream:
                    return stream.read()
            except FileNotFoundError:
                return None

    def write(self, name: str, text: str) -> None:
        """Write a small file, whole or not at all."""
        with self._errors(name), self._writing(name) as target, self.fs.open_output_stream(target) as out:
            out.write(text.encode())

    def send(self, file: Path, name: str) -> None:
        """Write what is in a file of this machine, whole or not at all."""
        with (
            self._errors(name),
            self._writing(name) as target,
            file.open("rb") as source,
            self.fs.open_output_stream(target) as out,
        ):
            shutil.copyfileobj(source, out, _CHUNK)

    def names(self) -> set[str]:
        """Of what is in it, hidden files aside (a kill may leave some); none where there is no such folder."""
        if self.folder is not None and self.folder.is_file():
            raise UserError(f"{self.name}: is a file; name a folder")
        with self._errors(""):
            found = {info.base_name for info in self.fs.get_file_info(FileSelector("", allow_not_found=True))}
        return {name for name in found if not name.startswith(".")}

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        """Where to write a file so that it is there whole or not at all: an S3 object is, a file is renamed in the end."""
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
            raise UserError(f"{self.name}: {name}{name and ': '}{first_line(error)}{self.ADVICE}") from None


def parquet_files(name: str) -> tuple[FileSystem, dict[str, str]]:
    """Parquet files below a folder (a path or a URI), or the one that it is.

    Returns:
        pyarrow's file system; name below the folder (a file's own) → path there, sorted.

    Raises:
        UserError: there are none, or they cannot be looked for.
    """
    shown = without_password(name)
    fs, path = _file_system(name, Path.cwd())
    try:
        info = fs.get_file_info(path)
        if info.type == FileType.File:
            return fs, {info.base_name: path}
        if info.type == FileType.NotFound:
            raise UserError(f"{shown}: nothing there; name a Parquet file or a folder of such files")
        below = fs.get_file_info(FileSelector(path, recursive=True))
    except (ArrowException, OSError) as error:
        raise UserError(f"{shown}: {first_line(error)}") from None
    files = {
        Path(one.path).relative_to(path): one.path for one in below if one.type == FileType.File and one.extension == "parquet"
    }
    # Files and folders that begin like that are passed over by all who read folders of Parquet.
    kept = {name.as_posix(): at for name, at in files.items() if not any(part[0] in "_." for part in name.parts)}
    if not kept:
        raise UserError(f"{shown}: no file *.parquet below it; name a Parquet file or a folder of them")
    return fs, dict(sorted(kept.items()))


def parquet_file(name: str, file: str) -> tuple[FileSystem, str]:
    """File system and path of one of `parquet_files`, without looking for all of them."""
    fs, path = _file_system(name, Path.cwd())
    try:
        return fs, path if fs.get_file_info(path).type == FileType.File else f"{path}/{file}"
    except (ArrowException, OSError) as error:
        raise UserError(f"{without_password(name)}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Of what pyarrow says, which goes on with advice of its own."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _file_system(name: str, home: Path, asked: str = "") -> tuple[FileSystem, str]:
    if "://" not in name:
        return LocalFileSystem(), str((home / name).resolve())
    try:
        return FileSystem.from_uri(name)
    except (ArrowException, ValueError, OSError) as error:
        raise UserError(f"{asked}{without_password(name)!r}: {first_line(error)}") from None
