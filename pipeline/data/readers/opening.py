"""A path → the unpacked bytes, or the lines of text, of a regular file, and its format. The content decides on the format."""

from __future__ import annotations

import os.path
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import other_kind

MOST_CHARACTERS = 10_000_000
"""The most characters of a line or csv record. Beyond it, a quote was not closed or the file is not what it seems."""
_CHUNK = 1 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_BOM = b"\xef\xbb\xbf"
_NOT_UTF8 = "not valid UTF-8 (perhaps Latin-1 or UTF-16); write the file again as UTF-8"
_NUL = "a NUL character; the file is damaged or not a text file; write it again as UTF-8 text"
LONE_RETURN = "a carriage return (\\r) without \\n; write the file again with \\n or \\r\\n line ends"
_LONG = f"a line of more than {MOST_CHARACTERS:,} characters; divide it by line ends (\\n), one record a line"


class LineFault(Exception):
    """A fault of a line; readers turn it into a `UserError` that also names the row."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def locate(root: Path, path: str) -> Path:
    """The full path of a file.

    Raises:
        UserError: it is outside `root`, does not exist, is not a regular file, or is empty.
    """
    full = resolve(root, path)
    try:
        status = full.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file under data.root ({root}); correct the path or put the file there") from None
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is not a regular file (a folder, pipe, device or socket); name a file")
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
    # Path.is_dir raises an error for a folder without permission.
    if not os.path.isdir(base):  # noqa: PTH112
        raise UserError(f"data.root: {root} is not a folder that can be read; set it to the folder with the files of data.files")
    return Path(full)


def stem(path: str) -> str:
    """The file's name in the `source` of its rows: without folder, compression suffix and format suffix."""
    return Path(Path(path).name.removesuffix(".gz").removesuffix(".zst")).stem


def byte_blocks(full: Path, path: str) -> Iterator[bytes]:
    """The unpacked bytes of a file, in blocks.

    Raises:
        UserError: the file cannot be opened, is not data, or its compressed data is damaged or compressed twice.
    """
    try:
        file = full.open("rb")
    except OSError as error:
        raise _cannot_open(path, error) from None
    with file:
        packed = _packed(file.read(8))
        file.seek(0)
        try:
            plain: Any = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), packed) if packed else file
            block = plain.read(_CHUNK)
            _refuse(block, packed, path)
            while block:
                yield block
                block = plain.read(_CHUNK)
        except (OSError, ValueError) as error:
            if packed is None:
                raise
            raise UserError(f"{path}: its {packed} compression is damaged ({first_line(error)}); get or write it again") from None


def head(full: Path, path: str) -> bytes:
    """The first megabyte of the unpacked bytes, or all of them."""
    return next(byte_blocks(full, path), b"")


def detect(start: bytes, path: str, separator: str | None) -> str:
    """The format, from the first bytes of a file: parquet, jsonl, or the character that separates the columns of a text file.

    The name decides only between comma and tab if both are possible.

    Raises:
        UserError: the file is empty or has a format that is not supported.
    """
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(_BOM).lstrip(b" \t\r\n")
    if not text:
        raise UserError(f"{path}: is empty (white space only); get or write it again")
    if separator is not None:
        return separator
    if text.startswith(b"["):
        raise UserError(f"{path}: is one JSON array; write its objects one a line (jq -c '.[]' FILE)")
    if text.startswith(b"{"):
        return "jsonl"
    header = start.split(b"\n", 1)[0]
    return "\t" if b"\t" in header and not (b"," in header and Path(path).suffix == ".csv") else ","


def lines(blocks: Iterable[bytes]) -> Iterator[str]:
    r"""Lines of UTF-8 text without their \n (a \r before it is kept); a byte-order mark at the start is removed.

    Raises:
        LineFault: a line is not valid UTF-8, contains NUL or is too long; raised after the lines before it.
    """
    for number, line in enumerate(_byte_lines(blocks), 1):
        try:
            text = (line.removeprefix(_BOM) if number == 1 else line).decode()
        except UnicodeDecodeError:
            raise LineFault(number, _NOT_UTF8) from None
        if "\0" in text:
            raise LineFault(number, _NUL)
        if len(text) > MOST_CHARACTERS:
            raise LineFault(number, _LONG)
        yield text


def without_return(line: str, number: int) -> str:
    r"""The line without the \r of \r\n.

    Raises:
        LineFault: there is another \r in the line.
    """
    line = line.removesuffix("\r")
    if "\r" in line:
        raise LineFault(number, LONE_RETURN)
    return line


def _byte_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
        # A character has at most four bytes.
        if len(rest) > 4 * MOST_CHARACTERS:
            break
    if rest:
        yield rest


def _cannot_open(path: str, error: OSError | ValueError) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(f"{path}: cannot be opened ({reason}); correct the path, or the permissions of the file and its folders")


def _packed(start: bytes) -> str | None:
    return next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)


def _refuse(first: bytes, packed: str | None, path: str) -> None:
    """Refuse a file whose first unpacked bytes are not data."""
    inner = "Parquet" if first.startswith(b"PAR1") else _packed(first)
    if packed and inner:
        raise UserError(f"{path}: is compressed twice ({inner} inside {packed}); unpack it once")
    if (kind := other_kind(first)) is not None:
        raise UserError(f"{path}: is {kind.replace(';', f', compressed with {packed};', 1) if packed else kind}")
