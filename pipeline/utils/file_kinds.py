"""Names a file that is not what was asked for: a pointer, a web page, an archive, or text in another encoding."""

from __future__ import annotations

from pathlib import Path

_UNPACK, _UTF8 = "unpack it and name the file inside", "write it again as UTF-8"
# First bytes → the kind and what to do.
_KINDS = {
    b"version https://git-lfs": "a pointer of Git LFS; get the file itself (git lfs pull)",
    b"outs:\n": "a pointer of DVC; get its file (dvc pull) and name that",
    b"PK\x03\x04": f"a zip file (or a spreadsheet); {_UNPACK}",
    b"BZh": "compressed with bz2; unpack it, or compress it with gzip or zstd",
    b"\xfd7zXZ\0": "compressed with xz; unpack it, or compress it with gzip or zstd",
    b"\xff\xfe": f"UTF-16 text; {_UTF8}",
    b"\xfe\xff": f"UTF-16 text; {_UTF8}",
}
_PAGES = (b"<!doctype", b"<html", b"<head", b"<body", b"<?xml")
START = 512
"""Number of bytes that decide."""


def other_kind(start: bytes) -> str | None:
    """Name a file's kind by its first bytes, and what to do; None for text, Parquet, models, gzip and zstd."""
    if start[5:9] == b"\0\0\0{":
        # A safetensors file begins with the length of its header, which may look like anything.
        return None
    if start[257:262] == b"ustar":
        return f"a tar file; {_UNPACK}"
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:9].lower().startswith(_PAGES):
        return "a web page (HTML or XML); download the file itself"
    return next((kind for first, kind in _KINDS.items() if start.startswith(first)), None)


def other_kind_of(path: Path) -> str | None:
    """`other_kind` of a file."""
    with path.open("rb") as file:
        return other_kind(file.read(START))
