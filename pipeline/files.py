"""Files that are written whole or not at all, and the SHA-256 sums that travel with a folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError, UserError, passes

SUMS = "SHA256SUMS"


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Say which output it was when a disk is full; libraries often only say that one is.

    Raises:
        StorageError: instead of an `OSError` for a full disk, an exceeded quota or a file past the limit.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = os.strerror(error.errno)
        raise StorageError(f"{path}: cannot be written ({reason}); nothing was changed, make room and run again") from None


@contextmanager
def write_directory(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """A fresh sibling folder to write into; it takes `path`'s place when the block ends well and vanishes when it does not.

    Args:
        keep: where the folder that was there before goes, in the place of whatever is there; None removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = keep or path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with room_for(path):
            yield temporary
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
    finally:
        if old.exists() and not path.exists():
            # Interrupted between the two renames.
            old.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        if keep is None:
            shutil.rmtree(old, ignore_errors=True)


def refuse_taken(path: Path) -> None:
    """For what is written to a place that somebody names: nothing of theirs is replaced.

    Raises:
        UserError: there is something.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: is there already; name a new folder")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A name beside a file, which takes its place when the block ends well; several hosts may do so at once."""
    new = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield new
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, room_for(path):
        new.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Indented JSON with sorted keys, as it stands in a file."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with sorted keys, whole or not at all."""
    write_text(path, json_text(value))


def read_json(path: Path) -> Any:
    """The JSON value of a file.

    Raises:
        UserError: missing or not JSON.
        OSError: the file system fails in a way that passes.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and passes(error):
            raise
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS (the format of sha256sum) over every other file of a folder."""
    # The sums of a folder inside it (the model in a checkpoint) are ordinary files.
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / SUMS)
    lines = [f"{sha256_file(p)}  {p.relative_to(folder).as_posix()}\n" for p in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path) -> None:
    """Check every file of a folder against its SHA256SUMS.

    Raises:
        UserError: no sums, a file missing, one whose bytes differ, or one that the sums do not name.
    """
    listing = folder / SUMS
    if not listing.is_file():
        raise UserError(f"{folder}: no {SUMS}: refusing files that cannot be verified")
    named = {SUMS}
    for line in listing.read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        named.add(name)
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()) or not target.is_file():
            raise UserError(f"{folder}/{name}: named in {SUMS} but not there")
        if sha256_file(target) != expected:
            raise UserError(f"{target}: differs from its SHA-256 sum; the file is damaged or was changed")
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if present - named:
        raise UserError(f"{folder}/{min(present - named)}: not named in {SUMS}; somebody put it there, remove it")
