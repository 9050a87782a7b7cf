"""Connections to the front: how many there may be, and how long and how large what they send may be."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from contextlib import suppress
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pipeline.serving.limits import Limits, error_body
from pipeline.utils.logs import log

HEADER_BYTES = 32_768
"""The most of a request that is not its body: its first line, its headers, the frame of a chunk, trailers."""
_LINES = 100
LONG_HEADER = (
    f"the headers of the request are larger than {HEADER_BYTES} bytes or have more than {_LINES} lines; send less in them"
)
HEADER_SECONDS = 10
"""Time for the headers of a request, from the start of the connection or from their first byte."""
BURST = 4
"""Connections that are accepted at once, so that accepting many does not delay the others."""
FILES = 16
"""Files of the page /docs that are sent at once."""
# Files other than connections: those of the process itself and of the page, and connections that are accepted or just closed.
_OTHER_FILES, _FEWEST = 512, 64
# The most bytes of answers that wait for their clients to read, what one takes besides, and for how long a client may then read
# nothing.
_UNREAD, _ANSWERING, _UNREAD_SECONDS = 64_000_000, 250_000, 3
# The rank of a connection that never makes room.
_BUSY = 3
# Requests that may wait on a connection for the one before them, and bytes that are parsed at once.
_PIPELINED, _PIECE = 8, 16_384


class Connections:
    """All connections of a server. When there are too many, the one that has sent no complete request for longest is closed."""

    def __init__(self, limits: Limits) -> None:
        files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = limits.connections + _OTHER_FILES
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        # Where it cannot be raised (macOS has a limit of its own), it stays.
        with suppress(ValueError, OSError):
            if files != resource.RLIM_INFINITY and files < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                files = wanted
        self.limits, self.most = limits, limits.connections
        if files != resource.RLIM_INFINITY:
            self.most = max(_FEWEST, min(self.most, files - _OTHER_FILES))
        if self.most < limits.connections:
            log.warning(f"serve: at most {self.most} connections, since `ulimit -n` is {files}; raise it for more")
        # The longest without a complete request and its answer first; of all, and of each address.
        self._all: dict[BoundedHttp, None] = {}
        self._of: dict[str, dict[BoundedHttp, None]] = {}

    def add(self, new: BoundedHttp) -> None:
        """Take a connection, in place of another one if there are too many of its address or in all."""
        same, every = self._of.setdefault(new.address, {}), self._all
        if rivals := same if len(same) >= self.limits.per_address else every if len(every) >= self.most else {}:
            oldest = next((one for rank in range(_BUSY) for one in rivals if one.rank == rank), new)
            oldest.refuse(503, "too many connections are open; try again later")
            self._end(oldest)
            if oldest is new:
                return
        self._all[new] = self._of.setdefault(new.address, {})[new] = None

    def answered(self, one: BoundedHttp) -> None:
        """Note that a connection got an answer: others are older now."""
        if one in self._all:
            for held in (self._all, self._of[one.address]):
                del held[one]
                held[one] = None

    def _end(self, one: BoundedHttp) -> None:
        one.transport.abort()
        self.remove(one)

    def remove(self, one: BoundedHttp) -> None:
        """Forget a connection that has ended."""
        self._all.pop(one, None)
        same = self._of.get(one.address, {})
        same.pop(one, None)
        if not same:
            self._of.pop(one.address, None)

    async def watch(self) -> None:
        """End connections that are too slow, until cancelled."""
        while True:
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            unread = sum(one.transport.get_write_buffer_size() + _ANSWERING for one in self._all if one.flow.write_paused)
            for one in list(self._all):
                one.end_if_late(now, _UNREAD_SECONDS if unread > _UNREAD else HEADER_SECONDS)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's connection with limits; httptools itself keeps a header of any length, for any time.

    h11 has a limit of length, but it costs a request 0.1 ms, and the 250 kB of a connection's buffer in chunks of one byte 0.1 s.
    """

    def __init__(self, all_connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.address = ""
        """The client's address; for IPv6 the network of 64 bits, which one client may have whole."""
        self.in_body = False
        self._all_connections = all_connections
        # Bytes since the last headers, piece of a body or request that was complete.
        self._bytes = 0
        # Bytes that arrived while a whole request waited for its answer.
        self._ahead = 0
        self._ends = False
        self._began: float | None = None
        # Since when nobody has read of the answer, and bytes of it that wait.
        self._stalled: float | None = None
        self._unread = 0

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def rank(self) -> int:
        """How soon it has to make room for others: while it sends a request, while its answer is not read, between requests."""
        if self.flow.write_paused:
            return 1
        return _BUSY if self.busy and not self.in_body else 0 if self.in_body or self._began is not None else 2

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, if there is a place."""
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        self.address = ipaddress.ip_address(host).exploded[:19] if ":" in host else host
        self._began = self.loop.time()
        self._all_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        self._all_connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, or end the connection."""
        if self._began is None and not self.busy:
            self._began = self.loop.time()
        for start in range(0, len(data), _PIECE):
            if self._ends or self.transport.is_closing():
                return
            piece = data[start : start + _PIECE]
            self._bytes += len(piece)
            # Of a body that waits for the requests before it, uvicorn itself reads no more than 64 kB.
            if self.busy and not self.in_body:
                self._ahead += len(piece)
                if self._ahead > HEADER_BYTES:
                    self._end_after_answers()
                    return
            self._feed(piece)
            # The rest of a body that was refused is read, up to as much again, so that the client reads why.
            if self._bytes > (2 * self._all_connections.limits.bytes if self.in_body and not self.busy else HEADER_BYTES):
                self.refuse(431, LONG_HEADER)

    def _feed(self, piece: bytes) -> None:
        """Parse a piece; a request that asks for another protocol, such as that of Java's client (h2c), is answered by HTTP/1.

        uvicorn answers it, too, but httptools skips its body.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            kept = [(name, value) for name, value in self.headers if name != b"upgrade"]
            if len(kept) == len(self.headers):
                # CONNECT, which asks for a tunnel.
                self.send_400_response("Invalid HTTP request received.")
                return
            first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            lines = [first, *(name + b": " + value for name, value in kept), b"", piece[upgrade.args[0] :]]
            self._feed(b"\r\n".join(lines))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def refuse(self, status: int, why: str) -> None:
        """Say why if there is a request to answer, and end the connection."""
        if self.transport.is_closing():
            return
        answerable = not self.cycle.response_started if self.busy else self._bytes and not self.in_body
        if answerable and not self.pipeline:
            body = orjson.dumps(error_body(status, why))
            head = f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()

    def end_if_late(self, now: float, patience: float) -> None:
        """End the connection if its headers take too long, or nobody has read of its answer for some seconds."""
        unread = self.transport.get_write_buffer_size()
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._stalled = None
        elif self._stalled is None or unread < self._unread:
            self._stalled = now
        self._unread = unread
        if self._stalled is not None and now - self._stalled > patience:
            self.transport.abort()
        elif self._began is not None and now - self._began > HEADER_SECONDS:
            self.refuse(408, f"the headers of the request were not complete after {HEADER_SECONDS} s")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a line.

        Raises:
            ValueError: it is one too many.
        """
        if len(self.headers) >= _LINES:
            if not self.busy or self.in_body:
                self.refuse(431, LONG_HEADER)
            raise ValueError("too many lines")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer; the body has its own limits.

        Raises:
            ValueError: too many requests wait on this connection.
        """
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError("too many requests wait")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._bytes, self._began, self.in_body = 0, None, True

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self.busy:
            self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; another one may follow."""
        if self.parser.should_upgrade():
            return
        self._bytes, self._began, self.in_body = 0, None, False
        super().on_message_complete()
        if not self.busy:
            # It was answered before its end.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of a body that was refused."""
        self._ahead, self._began = 0, self.loop.time() if self.in_body and not self.busy else None
        super().on_response_complete()
        self._all_connections.answered(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or one pipelined request too many, once the requests before it are answered."""
        if self.busy and not self.in_body:
            self._end_after_answers()
        else:
            self.refuse(400, msg)

    def _end_after_answers(self) -> None:
        self._ends, self.cycle.keep_alive = True, False
        self.flow.pause_reading()
