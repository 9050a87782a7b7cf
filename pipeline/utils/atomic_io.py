"""Atomic file writes, and the SHA-256 checksums of a folder's files."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.utils.errors import StorageError, UserError, passes
from pipeline.utils.file_kinds import other_kind_of

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
    """Name the output file if the disk is full; libraries often report only that it is full.

    Raises:
        StorageError: instead of an `OSError` for a full disk, an exceeded quota or an exceeded file size limit.
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
    """A new sibling folder to write into. It replaces `path` if the block succeeds, and is removed if it fails.

    Its name is random, because processes of two hosts or containers may have the same number.

    Args:
        keep: where to move the folder that `path` was before, replacing what is there; None removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = uuid.uuid4().hex
    temporary = path.with_name(f".{path.name}.{mine}.tmp")
    old = keep or path.with_name(f".{path.name}.{mine}.old")
    temporary.mkdir()
    try:
        with room_for(path):
            yield temporary
        for file in temporary.rglob("*"):
            # safetensors writes files that only their owner can read.
            if not file.is_symlink() and file.is_file() and file.stat().st_mode & 0o777 == 0o600:
                file.chmod(temporary.stat().st_mode & 0o666)
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


def flush(*paths: Path) -> None:
    """Wait until files, and the lists of files that folders are, have reached the disk and so outlive a power failure."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_taken(path: Path) -> None:
    """Make sure that output to a user's path overwrites nothing.

    Raises:
        UserError: the path exists and is not an empty folder.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: already exists; name a new folder")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A temporary path next to `file`, which it replaces if the block succeeds; safe if several hosts do this at once."""
    new = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield new
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, room_for(path):
        new.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Indented JSON with sorted keys, as written to files."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with sorted keys atomically."""
    write_text(path, json_text(value))


def read_json(path: Path) -> Any:
    """The JSON value in a file.

    Raises:
        UserError: the file is missing or not JSON.
        OSError: the file system has a temporary failure.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and passes(error):
            raise
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None


def to_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> str:
    """Rows with equal keys as CSV text; `header` names the columns if rows is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS (in the format of sha256sum) for all other files of a folder."""
    # A subfolder's own SHA256SUMS (the model in a checkpoint) is an ordinary file here.
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / SUMS)
    lines = [f"{sha256_file(p)}  {p.relative_to(folder).as_posix()}\n" for p in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _in_dvc_cache(link: Path, target: Path) -> bool:
    """True if DVC made a link (`cache.type symlink`): its target is in a cache, wherever that is, named by its own MD5."""
    name = f"{target.parent.name}{target.name}"
    if not link.is_symlink() or not re.fullmatch("[0-9a-f]{32}", name):
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest() == name


def check_sums(folder: Path) -> str:
    """Check every file of a folder against its SHA256SUMS, and return the text of that.

    Raises:
        UserError: SHA256SUMS is missing, a listed file is missing or has other bytes, or a file is not listed.
    """
    listing = folder / SUMS
    if not listing.is_file():
        raise UserError(f"{folder}: no {SUMS}: refusing files that cannot be verified")
    named, text = {SUMS}, listing.read_text(encoding="utf-8")
    for line in text.splitlines():
        expected, _, name = line.partition("  ")
        named.add(name)
        target = (folder / name).resolve()
        if not target.is_file() or not (target.is_relative_to(folder.resolve()) or _in_dvc_cache(folder / name, target)):
            raise UserError(f"{folder}/{name}: listed in {SUMS} but missing, or a link that leaves the folder")
        if sha256_file(target) != expected:
            kind = other_kind_of(target)
            fault = f"is {kind}" if kind else "the file is damaged or was changed"
            raise UserError(f"{target}: differs from its SHA-256 sum; {fault}")
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if present - named:
        raise UserError(f"{folder}/{min(present - named)}: not listed in {SUMS}, so it was added later; remove it")
    return text
