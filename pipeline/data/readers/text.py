"""Bytes → lines of text, whatever is wrong with them named by its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST_CHARACTERS = 10_000_000
"""Longest line or csv field: beyond it a quote was not closed, or the file is something else."""
_BOM = b"\xef\xbb\xbf"
_NOT_UTF8 = "not valid UTF-8 (perhaps Latin-1 or UTF-16); write the file again as UTF-8"
_NUL = "a NUL character; the file is damaged or is no text file: write it again as UTF-8 text"
_LONG = f"a line of more than {MOST_CHARACTERS:,} characters; write one record a line, ended by \\n"
LONE_RETURN = "a carriage return (\\r) without \\n; write the file again with \\n or \\r\\n line ends"


class LineFault(Exception):
    """What is wrong with a line; readers turn it into a `UserError` that names the row too."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def lines(blocks: Iterable[bytes]) -> Iterator[str]:
    r"""Lines of UTF-8 text without their \n (a \r before it stays); a byte-order mark at the start is left out.

    Raises:
        LineFault: with the line that is no UTF-8, holds NUL or is too long, after the lines before it.
    """
    rest, number, started = b"", 0, False
    for block in blocks:
        data = rest + block
        if not started:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                rest = data
                continue
            started, data = True, data.removeprefix(_BOM)
        cut = data.rfind(b"\n")
        # A character is four bytes at most.
        if cut < 0 and len(data) > 4 * MOST_CHARACTERS:
            raise LineFault(number + 1, _LONG)
        if cut >= 0:
            yield from _decoded(data[:cut], number)
            number += data.count(b"\n", 0, cut) + 1
        rest = data[cut + 1 :]
    rest = rest if started else rest.removeprefix(_BOM)
    if rest:
        yield from _decoded(rest, number)


def without_return(line: str, number: int) -> str:
    r"""The line without the \r of \r\n; `LineFault` if another \r is left."""
    if "\r" not in line:
        return line
    line = line.removesuffix("\r")
    if "\r" in line:
        raise LineFault(number, LONE_RETURN)
    return line


def _decoded(data: bytes, before: int) -> Iterator[str]:
    """Lines of whole-line data; `before` lines came before them."""
    fault = None
    nul = data.find(b"\0")
    if nul >= 0:
        fault, data = _NUL, data[:nul]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut in two by the NUL is still the NUL's fault only if nothing is wrong before it.
        fault, data = _NOT_UTF8, data[: error.start]
        text = data.decode("utf-8")
    found = text.split("\n")
    if fault is not None:
        found.pop()
    if len(text) > MOST_CHARACTERS:
        for i, line in enumerate(found):
            if len(line) > MOST_CHARACTERS:
                yield from found[:i]
                raise LineFault(before + i + 1, _LONG)
    yield from found
    if fault is not None:
        raise LineFault(before + len(found) + 1, fault)
