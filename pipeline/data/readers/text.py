"""Bytes → lines of text. Errors name the line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST_CHARACTERS = 10_000_000
"""The most characters of a line or csv record. Beyond it, a quote was not closed or the file is not what it seems."""
_BOM = b"\xef\xbb\xbf"
_NOT_UTF8 = "not valid UTF-8 (perhaps Latin-1 or UTF-16); write the file again as UTF-8"
_NUL = "a NUL character; the file is damaged or not a text file; write it again as UTF-8 text"
_LONG = f"a line of more than {MOST_CHARACTERS:,} characters; divide it by line ends (\\n), one record a line"
LONE_RETURN = "a carriage return (\\r) without \\n; write the file again with \\n or \\r\\n line ends"


class LineFault(Exception):
    """A fault of a line; readers turn it into a `UserError` that also names the row."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def lines(blocks: Iterable[bytes]) -> Iterator[str]:
    r"""Lines of UTF-8 text without their \n (a \r before it is kept); a byte-order mark at the start is removed.

    Raises:
        LineFault: a line is not valid UTF-8, contains NUL or is too long; raised after the lines before it.
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
        # A character has at most four bytes.
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
    r"""The line without the \r of \r\n.

    Raises:
        LineFault: there is another \r in the line.
    """
    if "\r" not in line:
        return line
    line = line.removesuffix("\r")
    if "\r" in line:
        raise LineFault(number, LONE_RETURN)
    return line


def _decoded(data: bytes, before: int) -> Iterator[str]:
    """The lines of data that ends at the end of a line; `before` is the number of lines before."""
    fault = None
    nul = data.find(b"\0")
    if nul >= 0:
        fault, data = _NUL, data[:nul]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Bad UTF-8 before the NUL is the first fault, and so is a character that the NUL cuts in two.
        fault, data = _NOT_UTF8, data[: error.start]
        text = data.decode("utf-8")
    text_lines = text.split("\n")
    if fault is not None:
        text_lines.pop()
    if len(text) > MOST_CHARACTERS:
        for i, line in enumerate(text_lines):
            if len(line) > MOST_CHARACTERS:
                yield from text_lines[:i]
                raise LineFault(before + i + 1, _LONG)
    yield from text_lines
    if fault is not None:
        raise LineFault(before + len(text_lines) + 1, fault)
