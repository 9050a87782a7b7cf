"""Checks each request before the front sees it: header, token, size, how many are in progress, time. Counts the answers."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipeline.serving.limits import Limits, Refusal, error_body, loopback
from pipeline.serving.metrics import Metrics
from pipeline.serving.page import PATHS
from pipeline.utils.errors import last_line
from pipeline.utils.logs import log

OPEN = frozenset(("/live", "/ready", "/docs", "/openapi.json")) | PATHS
"""Paths without a token: probes, which cannot keep one, the description of the API, and the page, which asks for a token."""
STATIC = "/static-offline-docs/"
"""Before the names of the scripts of the page /docs, which need no token either."""
HEADER_BYTES = 32_768
"""The most of a request that is not its body: its first line, its headers, the frame of a chunk, trailers."""
_LONG_HEADER = f"the headers of the request are larger than {HEADER_BYTES} bytes; send less in them"


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's connection with an end to headers; httptools itself keeps a header of any length.

    h11 has such a limit, but it costs a request 0.1 ms, and the 250 kB of a connection's buffer in chunks of one byte 0.1 s.
    """

    _bytes = 0
    """Received since the last headers, piece of a body or request that was complete."""

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, or end the connection."""
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes <= HEADER_BYTES or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = orjson.dumps(error_body(431, _LONG_HEADER))
            head = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin to answer; the body has its own limit."""
        self._bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; another one may follow."""
        self._bytes = 0
        super().on_message_complete()


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, paths: Iterable[str], limits: Limits, tokens: Sequence[str], metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._paths = frozenset(paths)
        self._tokens = [token.encode() for token in tokens]
        self._in_progress = 0
        metrics.in_progress.set_function(lambda: self._in_progress)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # Every GET route answers it. uvicorn, which has the scope as it was, leaves the body out.
            scope = {**scope, "method": "GET"}
        start, status = time.perf_counter(), 0
        # Unknown paths share one label, so that clients cannot make any number of metrics.
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._guarded(scope, receive, sending)
        except Refusal as refusal:
            # An answer that has begun cannot be changed any more.
            if not status:
                await problem(refusal.status, str(refusal))(scope, receive, sending)
        except Exception as error:
            # The application has answered it.
            log.error(f"serve: {path}: {type(error).__name__}: {last_line(error)}", exc_info=error)
        finally:
            self._metrics.requests.labels(path, str(status or 499)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - start)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A long header that arrived in one piece; `BoundedHttp` refuses the others.
        if sum(map(len, (scope["raw_path"], scope["query_string"], *chain.from_iterable(scope["headers"])))) > HEADER_BYTES:
            raise Refusal(431, _LONG_HEADER)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._tokens and not _local(headers.get(b"host", b"")):
            raise Refusal(421, "without a token this server answers only requests to localhost; set GAUSSCSE_SERVE_TOKEN")
        if scope["path"] in OPEN or scope["path"].startswith(STATIC):
            await self._app(scope, receive, send)
            return
        if self._tokens and not self._known(headers.get(b"authorization", b"")):
            raise Refusal(401, "send the header `Authorization: Bearer TOKEN` with a token of this server")
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._in_progress >= self._limits.concurrent:
            raise Refusal(503, f"{self._in_progress} requests are in progress; try again later")
        self._in_progress += 1
        try:
            await self._bounded(scope, receive, send)
        finally:
            self._in_progress -= 1

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and have the request answered, all within the time limit."""
        most = self._limits.bytes
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise _too_large(most)
        late = f"after {self._limits.seconds} s"
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                body = await _read(receive, most)
        except TimeoutError:
            raise Refusal(408, f"the body of the request was not complete {late}") from None
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return unread.pop() if unread else await receive()

        try:
            async with asyncio.timeout_at(deadline):
                await _unless_gone(self._app(scope, receive_again, send), receive)
        except TimeoutError:
            raise Refusal(504, f"the request was not answered {late}; send less at once, or try later") from None

    def _known(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        return scheme.lower() == b"bearer" and any(hmac.compare_digest(token.strip(), known) for known in self._tokens)


def problem(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is refused."""
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(status, headers)
    # What came from the request may hold half a character, which JSON in UTF-8 cannot.
    plain = why.encode("utf-8", "replace").decode()
    return Response(orjson.dumps(error_body(status, plain)), status, headers, media_type="application/json")


def _local(host: bytes) -> bool:
    """True if a Host header names this machine. With DNS rebinding, the name of a page from elsewhere leads to this server."""
    with suppress(ValueError):
        return not host or loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    return False


async def _read(receive: Receive, most: int) -> bytes:
    """The body, which is never held beyond the limit."""
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the connection ended before the request was complete")
        parts += message.get("body", b"")
        if len(parts) > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return bytes(parts)


async def _unless_gone(work: Awaitable[None], receive: Receive) -> None:
    """Do the work, or give it up when the client hangs up. After the body, nothing else can arrive from it."""
    answering, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the request is larger than {most} bytes; send fewer sentences at once")
