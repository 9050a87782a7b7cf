"""Folders of Parquet and JSON wherever pyarrow can go: a path, or a URI (s3://…)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from pipeline.errors import UserError
from pipeline.files import replacing, room_for, write_json
from pipeline.uris import without_password


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or a file. Every method raises `UserError` if it cannot be reached."""

    name: str

    def open(self) -> tuple[FileSystem, str]:
        """pyarrow's file system, and the path there."""
        if "://" not in self.name:
            return LocalFileSystem(), str(Path(self.name).absolute())
        try:
            return FileSystem.from_uri(self.name)
        except (ArrowException, ValueError, OSError) as error:
            raise self._error("", error) from None

    def read(self, name: str) -> str | None:
        """A small text file below it; None where there is none."""
        fs, path = self.open()
        try:
            with fs.open_input_stream(f"{path}/{name}") as stream:
                return stream.read().decode()
        except FileNotFoundError:
            return None
        except (ArrowException, OSError) as error:
            raise self._error(name, error) from None

    def write(self, name: str, value: Any) -> None:
        """Put JSON below it, whole or not at all."""
        with TemporaryDirectory(prefix="gausscse-") as folder:
            write_json(Path(folder) / name, value)
            self.send(Path(folder) / name, name)

    def names(self) -> set[str]:
        """Of what is in it; none where there is no such folder."""
        fs, path = self.open()
        try:
            if fs.get_file_info(path).type == FileType.File:
                raise UserError(f"{without_password(self.name)}: is a file; name a folder")
            return {Path(one.path).name for one in fs.get_file_info(FileSelector(path, allow_not_found=True))}
        except (ArrowException, OSError) as error:
            raise self._error("", error) from None

    def send(self, file: Path, name: str) -> None:
        """Put a local file below it, whole or not at all."""
        fs, path = self.open()
        if isinstance(fs, LocalFileSystem):
            target = Path(path) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with room_for(target), replacing(target) as new:
                shutil.copyfile(file, new)
            return
        try:
            # An object is there when all of it was sent.
            with file.open("rb") as source, fs.open_output_stream(f"{path}/{name}") as out:
                shutil.copyfileobj(source, out, 2**23)
        except (ArrowException, OSError) as error:
            raise self._error(name, error) from None

    def files(self) -> dict[str, str]:
        """Parquet files below it, or itself if it is one, sorted: name below it (its own) → path of its file system."""
        fs, path = self.open()
        try:
            info = fs.get_file_info(path)
            if info.type == FileType.File:
                return {Path(path).name: path}
            if info.type == FileType.NotFound:
                raise UserError(f"{without_password(self.name)}: nothing there; name a Parquet file or a folder of such files")
            below = fs.get_file_info(FileSelector(path, recursive=True))
        except (ArrowException, OSError) as error:
            raise self._error("", error) from None
        files = (one.path for one in below if one.type == FileType.File)
        # What begins like that is passed over by all who read folders of Parquet.
        found = sorted(one for one in files if one.endswith(".parquet") and not Path(one).name.startswith(("_", ".")))
        if not found:
            raise UserError(f"{without_password(self.name)}: no file *.parquet below it; name a Parquet file or a folder of them")
        return {Path(one).relative_to(path).as_posix(): one for one in found}

    def _error(self, name: str, error: Exception) -> UserError:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return UserError(f"{without_password(self.name)}{'/' if name else ''}{name}: {said}")
