"""A path → the unpacked bytes of a regular file, and their format. The content decides on the format, not the name."""

from __future__ import annotations

import errno
import gzip
import os.path
import stat
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import other_kind

_CHUNK = 1 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PACKED_SUFFIXES = (".gz", ".zst")
_GONE = "no such file under data.root ({root}); correct the path or put the file there"
_OS_FAULTS = {
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.EACCES: "may not be read; give yourself read permission (chmod u+r) on the file and its folders",
}


def locate(root: Path, path: str) -> Path:
    """The full path of a file.

    Raises:
        UserError: it is outside `root`, does not exist, is not a regular file, or is empty.
    """
    full = resolve(root, path)
    try:
        status = full.stat()
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error, root) from None
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: is a folder; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is not a regular file (a pipe, device or socket); name a file")
    if status.st_size == 0:
        raise UserError(f"{path}: is empty (0 bytes); get or write it again")
    return full


def resolve(root: Path, path: str) -> Path:
    """The full path of `path` under `root`.

    Raises:
        UserError: `path` leads outside `root`, or `root` is not a folder.
    """
    # By name, without resolving links: DVC may link data files into a cache elsewhere.
    base = os.path.abspath(root)  # noqa: PTH100
    full = os.path.normpath(Path(base) / path)
    if os.path.commonpath([base, full]) != base:
        raise UserError(f"{path}: is outside data.root ({root}); move the file there or set data.root to a folder above it")
    try:
        folder = Path(base).is_dir()
    except PermissionError:
        raise UserError(f"data.root: {root} may not be read; give yourself permission (chmod u+rx)") from None
    if not folder:
        raise UserError(f"data.root: {root} is not a folder; set it to the folder that holds the files of data.files")
    return Path(full)


def stem(path: str) -> str:
    """The file's name in the `source` of its rows: without folder, compression suffix and format suffix."""
    name = Path(path).name
    for suffix in _PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return Path(name).stem


def byte_blocks(full: Path, path: str) -> Generator[bytes, None, None]:
    """The unpacked bytes of a file, in blocks.

    Raises:
        UserError: the file cannot be opened, is not data, or its compressed data is damaged, empty or compressed twice.
    """
    try:
        file = full.open("rb")
    except OSError as error:
        raise _cannot_open(path, error) from None
    with file:
        packed = _packed(file.read(8))
        file.seek(0)
        try:
            plain = _unpacked(file, packed)
            block = plain.read(_CHUNK)
            _refuse_first(block, packed, path)
            while block:
                yield block
                block = plain.read(_CHUNK)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            if packed is None:
                raise
            raise UserError(
                f"{path}: its {packed} compression is damaged or cut short ({first_line(error)}); get or compress the file again"
            ) from None


def head(full: Path, path: str) -> bytes:
    """At least the first megabyte of the unpacked bytes, or all of them."""
    start = b""
    with closing(byte_blocks(full, path)) as blocks:
        while len(start) < _CHUNK and (block := next(blocks, b"")):
            start += block
    return start


def detect(start: bytes, path: str, separator: str | None) -> str:
    """The format, from the first bytes of a file: parquet, jsonl, or the character that separates the columns of a text file.

    The name decides only between comma and tab if both are possible.

    Raises:
        UserError: the file is empty or has a format that is not supported.
    """
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if not text:
        raise UserError(f"{path}: is empty (white space only); get or write it again")
    if text.startswith(b"[") and separator is None:
        raise UserError(f"{path}: is one JSON array; write its objects one a line (jq -c '.[]' FILE)")
    if text.startswith(b"{") and separator is None:
        return "jsonl"
    header = start.split(b"\n", 1)[0]
    if b"\0" in header and header.count(b"\0") * 3 > len(header):
        raise UserError(f"{path}: is UTF-16 text; write it again as UTF-8")
    has_tabs = b"\t" in header and not (b"," in header and Path(path).suffix == ".csv")
    return separator or ("\t" if has_tabs else ",")


def _cannot_open(path: str, error: OSError | ValueError, root: Path | str = "") -> UserError:
    number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, str(error))
    return UserError(f"{path}: {_OS_FAULTS.get(number or 0, f'cannot be opened ({reason}); correct the path').format(root=root)}")


def _packed(start: bytes) -> str | None:
    return next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)


def _unpacked(file: BinaryIO, packed: str | None) -> Any:
    if packed == "gzip":
        return gzip.GzipFile(fileobj=file)
    return file if packed is None else pa.CompressedInputStream(pa.PythonFile(file, mode="r"), packed)


def _refuse_first(first: bytes, packed: str | None, path: str) -> None:
    """Refuse a file whose first unpacked bytes are not data."""
    kind = other_kind(first)
    if packed is None:
        if kind is not None:
            raise UserError(f"{path}: is {kind}")
        return
    if not first:
        raise UserError(f"{path}: holds nothing but an empty {packed} file; get or write it again")
    if (again := _packed(first)) is not None:
        raise UserError(f"{path}: is compressed twice ({again} inside {packed}); unpack it once")
    if first.startswith(b"PAR1"):
        kind = "a Parquet file; unpack it once (Parquet compresses its own columns)"
    if kind is not None:
        raise UserError(f"{path}: is {kind.replace(';', f', compressed with {packed};', 1)}")
