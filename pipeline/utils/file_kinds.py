"""Names a file that is not what was asked for: a pointer, a web page, an archive, or data in another format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """What a file is, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


_UNPACK, _TEXT, _PARQUET = "unpack it and name the file inside", "write it again as UTF-8", "write it again as Parquet"
_PAGE = Kind("a web page (HTML or XML)", "download the file itself")
# First bytes, the longer ones first.
_KINDS = {
    b"version https://git-lfs.github.com": Kind("a pointer of Git LFS", "get the file that it stands for (git lfs pull)"),
    b"# xet version": Kind("a pointer of Xet", "get the file that it stands for (git xet, or hf download)"),
    b"/annex/objects/": Kind("a pointer of git-annex", "get the file that it stands for (git annex get)"),
    b"outs:\n": Kind("a pointer of DVC", "get its file (dvc pull) and name that"),
    b"PK\x03\x04": Kind("a zip file (or a spreadsheet)", _UNPACK),
    b"PK\x05\x06": Kind("an empty zip file", "get it again"),
    b"7z\xbc\xaf\x27\x1c": Kind("a 7z file", _UNPACK),
    b"Rar!": Kind("a rar file", _UNPACK),
    b"\x04\x22\x4d\x18": Kind("an lz4 file", _UNPACK),
    b"\x1f\x9d": Kind("a file of compress (.Z)", _UNPACK),
    b"ARROW1\0": Kind("an Arrow file", _PARQUET),
    b"\xff\xff\xff\xff": Kind("an Arrow stream", "write it again as Parquet, or read its folder with data.source: hub"),
    b"Obj\x01": Kind("an Avro file", _PARQUET),
    b"SQLite format 3": Kind("a SQLite database", _PARQUET),
    b"\x89HDF\r\n": Kind("an HDF5 file", _PARQUET),
    b"\x93NUMPY": Kind("a NumPy array", _PARQUET),
    b"\xd0\xcf\x11\xe0": Kind("an Excel or Word document", "save it as csv (UTF-8)"),
    b"%PDF": Kind("a PDF document", "get the text as a file of its own"),
    **{bytes((0x80, version)): Kind("a pickle", "write it again as Parquet or safetensors") for version in range(2, 6)},
    b"\xff\xfe\0\0": Kind("UTF-32 text", _TEXT),
    b"\0\0\xfe\xff": Kind("UTF-32 text", _TEXT),
    b"\xff\xfe": Kind("UTF-16 text", _TEXT),
    b"\xfe\xff": Kind("UTF-16 text", _TEXT),
}
_PAGES = (b"<!doctype", b"<html", b"<head", b"<body", b"<?xml")
_TAR = slice(257, 262)
START = 512
"""Bytes that decide."""


def other_kind(start: bytes) -> Kind | None:
    """What a file is by its first 512 bytes; None if it may be text, Parquet, a model, or one of these compressed."""
    if start[_TAR] == b"ustar":
        return Kind("a tar file", _UNPACK)
    if start.startswith(b"PARE") and b"\0" in start[:START]:
        return Kind("an encrypted Parquet file", "write it again without encryption")
    if start[5:9] == b"\0\0\0{":
        # A safetensors file begins with the length of its header, which may look like anything.
        return None
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:9].lower().startswith(_PAGES):
        return _PAGE
    return next((kind for first, kind in _KINDS.items() if start.startswith(first)), None)


def other_kind_of(path: Path) -> Kind | None:
    """`other_kind` of a file."""
    with path.open("rb") as file:
        return other_kind(file.read(START))
