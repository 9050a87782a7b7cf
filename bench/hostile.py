"""What an honest client notices of hostile ones: the latency of a pair meanwhile, and the memory of the server.

`python -m bench.hostile NAME PORT` is hostile until it is killed, on cores that it shares with the server.
"""

from __future__ import annotations

import gzip
import itertools
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread

from bench.corpus import corpus
from bench.measure import ROOT, Row
from bench.serving import Load, Server, load, ours_server, registered

MB = 1_000_000
HEAD = b"POST /encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# So that no body is larger than the limit.
WIDE = 320_000
_BODIES: dict[str, Callable[[], bytes]] = {
    "wrong items": lambda: b'{"sentences": [' + b"1," * (3 * WIDE) + b"1]}",
    "lists": lambda: b'{"sentences": [' + b"[]," * (2 * WIDE) + b"1]}",
    "keys": lambda: b"{" + b",".join(b'"%x":1' % number for number in range(WIDE // 2)) + b"}",
    "deep": lambda: b'{"sentences": ' + b"[" * (6 * WIDE),
    "a key": lambda: b'{"' + b"a" * (6 * WIDE) + b'": 1, "sentences": ["a"]}',
    "a number": lambda: b'{"sentences": ["a"], "k": ' + b"1" * (6 * WIDE) + b"}",
    "an exponent": lambda: b'{"sentences": ["a"], "k": 1e999999999}',
    "surrogates": lambda: b'{"sentences": ["' + rb"\ud83d" * WIDE + b'"]}',
    "an open text": lambda: b"1" * (3 * WIDE) + b'"' + b"," * (3 * WIDE),
    "white space": lambda: b'{"sentences": [' + b",".join([b'"' + b" " * 19_000 + b'"'] * 100) + b"]}",
    "zip": lambda: gzip.compress(b" " * (200 * MB), 1)[: 2 * MB],
}
KINDS = tuple(_BODIES)
"""Of hostile bodies."""
SLOW = (
    b"",
    b"GET /live HTTP/1.1\r\nA",
    HEAD + b"Content-Length: 1900000\r\n\r\n{",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
)
"""Beginnings of requests of which the rest comes slowly."""
_UNREAD = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"


@cache
def body(kind: str) -> bytes:
    """One of at most 2 MB that no server should take."""
    return _BODIES[kind]()


def connected(port: int, sent: bytes = b"") -> socket.socket:
    """A connection on which something was sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(sent)
    return connection


def upload(size: int, *, sent: int) -> bytes:
    """A request whose body has a size of which only some bytes are sent."""
    return HEAD + f"Content-Length: {size}\r\n\r\n".encode() + b" " * sent


def _endless(port: int, start: bytes, piece: bytes) -> None:
    with connected(port, start) as connection:
        while True:
            connection.sendall(piece)


def _slow(port: int) -> None:
    slow = [connected(port, kind) for _ in range(500) for kind in SLOW]
    for _ in range(30):
        time.sleep(1)
        for connection in slow[:200]:
            with suppress(OSError):
                connection.send(b"a")


def _many(port: int, sent: bytes, number: int, seconds: float) -> None:
    """Connections that send something and then nothing, and read nothing."""
    held: list[socket.socket] = []
    for _ in range(number):
        with suppress(OSError):
            held.append(connected(port, sent))
    time.sleep(seconds)


def _posted(port: int, sent: bytes, headers: bytes = b"") -> None:
    with connected(port, HEAD + headers + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(sent) + sent) as connection:
        while connection.recv(1 << 20):
            pass


@cache
def _texts(number: int, repeats: int) -> bytes:
    return json.dumps({"sentences": [f"A dog runs {row} times. " * repeats for row in range(number)]}).encode()


def _at_once(clients: int, ask: Callable[[], None]) -> None:
    threads = [Thread(target=_repeated, args=(ask,), daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _repeated(ask: Callable[[], None]) -> None:
    while True:
        with suppress(OSError):
            ask()


_CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ATTACKS: dict[str, Callable[[int], None]] = {
    "a header without an end": lambda port: _endless(port, HEAD + b"A: ", b"a" * 65_536),
    "headers of many lines": lambda port: _endless(port, HEAD, b"a: b\r\n" * 10_000),
    "a body without an end": lambda port: _endless(port, _CHUNKED, b"10000\r\n" + b"a" * 65_536 + b"\r\n"),
    "2,000 slow requests": _slow,
    "10,000 idle connections": lambda port: _many(port, b"", 10_000, 5),
    "80 large bodies that stop": lambda port: _many(port, upload(1_900_000, sent=1_800_000), 80, 5),
    "20 × 20,000 requests in advance": lambda port: _many(port, LIVE * 20_000, 20, 0.1),
    "100 clients that read nothing": lambda port: _many(port, _UNREAD * 8, 100, 2),
    "4 clients with 1,024 sentences a request": lambda port: _at_once(4, lambda: _posted(port, _texts(1024, 1))),
    "a client with texts of 3,000 characters": lambda port: _at_once(1, lambda: _posted(port, _texts(512, 150))),
    **{
        f"a body: {kind}": lambda port, kind=kind: _posted(port, body(kind), b"Content-Encoding: gzip\r\n" * (kind == "zip"))
        for kind in KINDS
    },
}
"""What a hostile client does, again and again."""


def run(quick: bool) -> list[Row]:
    """A pair a request from one client, alone and then during each attack."""
    data, requests = corpus(), 8 if quick else 400
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(data.texts)))
    texts = itertools.cycle(sentences)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        uri = registered(folder, data, sentences[:33])
        with ours_server(folder, uri, []) as server:
            for name in ATTACKS:
                alone, memory = _asked(server, texts, requests), server.process.memory_info().rss
                with _hostile(name, server.port):
                    time.sleep(0 if quick else 2)
                    meanwhile = _asked(server, texts, requests)
                more = (server.process.memory_info().rss - memory) / MB
                note = f"p99; p50 {meanwhile.p50:.3g} ms, alone {alone.p50:.3g} ms; memory {more:+.0f} MB"
                row = Row(
                    name=f"a pair during the attack: {name}", ours=meanwhile.p99, unit="ms", peak_mb=meanwhile.peak_mb, note=note
                )
                rows.append(replace(row, baseline=alone.p99, ratio=alone.p99 / meanwhile.p99))
    return rows


def _asked(server: Server, texts: Iterator[str], requests: int) -> Load:
    return load(server, [server.asks["similarity"](next(texts), next(texts)) for _ in range(requests)], 1)


@contextmanager
def _hostile(name: str, port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.hostile", name, str(port)], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _repeated(lambda: ATTACKS[sys.argv[1]](int(sys.argv[2])))
