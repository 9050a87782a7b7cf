"""Limits of a request, and the refusal of one that exceeds them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from pipeline.data.cleaning import is_empty

# A string, a sign that begins a value, or the end. It matches from everywhere, so the time is linear in the length.
_TOKENS = re.compile(rb'[^"\[{,]*+(?:"(?:[^"\\]++|\\.?)*+"?|[\[{,]|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a request and of all requests together; the help of each is that of its command-line option."""

    rows: int = field(default=1024, metadata={"help": "sentences, or pairs, in a request"})
    characters: int = field(default=20_000, metadata={"help": "characters in a sentence"})
    bytes: int = field(default=2_000_000, metadata={"help": "bytes in the body of a request"})
    concurrent: int = field(default=256, metadata={"help": "requests in progress; more get status 503"})
    bytes_together: int = field(default=32_000_000, metadata={"help": "bytes of all bodies that arrive, and of all in work"})
    connections: int = field(default=2000, metadata={"help": "connections; idle ones make room for new ones"})
    per_address: int = field(default=1000, metadata={"help": "connections of one address, such as that of a proxy"})
    seconds: int = field(default=60, metadata={"help": "seconds for a request, with its body; after that it gets 408 or 504"})

    def check(self, body: bytes) -> None:
        """Refuse a body of too many values before it is parsed, because that takes long and much memory.

        Raises:
            Refusal: it has more values than the most sentences of any request.
        """
        # Each sentence is two tokens: the text and the comma. A request has few other values.
        most = 4 * self.rows + 100
        if sum(map(body.count, (b",", b"[", b"{"))) > most and next(islice(_TOKENS.finditer(body), most, None), None):
            raise Refusal(413, f"the body: has too many values; send at most {self.rows} sentences or pairs")

    def texts(self, name: str, texts: Sequence[str]) -> list[str]:
        """The sentences of a field of a request.

        Raises:
            Refusal: there are none or too many, or one is too long, empty or not valid text.
        """
        if not texts:
            raise Refusal(422, f"{name}: is empty; send at least one sentence")
        if len(texts) > self.rows:
            raise Refusal(413, f"{name}: {len(texts)} rows in one request; send at most {self.rows}")
        for row, text in enumerate(texts):
            if len(text) > self.characters:
                raise Refusal(413, f"{name}[{row}]: {len(text)} characters are too many; send at most {self.characters}")
            if is_empty(text):
                raise Refusal(422, f"{name}[{row}]: is empty or only white space; send a sentence")
            # JSON can name half a character. Tokenizers and UTF-8 do not take it.
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Refusal(422, f"{name}[{row}]: has half a character (a lone surrogate); remove it") from None
        return list(texts)

    def pairs(self, names: tuple[str, str], first: Sequence[str], second: Sequence[str]) -> tuple[list[str], list[str]]:
        """Both sides of the pairs of a request.

        Raises:
            Refusal: as for `texts`; or the sides differ in length.
        """
        if len(first) != len(second):
            sizes = f"{names[0]} has {len(first)} sentences and {names[1]} has {len(second)}"
            raise Refusal(422, f"{sizes}; both lists need the same length")
        return self.texts(names[0], first), self.texts(names[1], second)


def loopback(host: str) -> bool:
    """True if a host's name or address can only mean this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Refusal(Exception):
    """A request that is not answered: the HTTP status, and one line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def error_body(status: int, why: str) -> dict[str, dict[str, str | int]]:
    """The body of every answer that is not 200, in the form that clients of OpenAI's API expect."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": why, "type": kind, "code": status}}
