"""Checks each request before the front sees it: header, token, size, how many are in progress, time. Counts the answers."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.serving.connections import FILES, HEADER_BYTES, LONG_HEADER
from pipeline.serving.limits import Limits, Refusal, error_body, loopback
from pipeline.serving.metrics import Metrics
from pipeline.serving.page import PATHS
from pipeline.utils.errors import last_line
from pipeline.utils.logs import log

OPEN = frozenset(("/live", "/ready", "/docs", "/openapi.json")) | PATHS
"""Paths without a token: probes, which cannot keep one, the description of the API, and the page, which asks for a token."""
STATIC = "/static-offline-docs/"
"""Before the names of the scripts of the page /docs, which need no token either."""
# Seconds that a client may pause in a body, and bytes a second that it must send after the first such time.
_BODY_SECONDS, _BODY_RATE = 10, 10_000
_SLOW = f"the body of the request came too slowly; send at least {_BODY_RATE} bytes a second, or less at once"
# A body of fewer bytes needs no share of the bytes that are answered together.
_SMALL = 65_536
# Bytes a second that are read of all larger bodies together. A model encodes far fewer, and parsing them faster would leave small
# requests no time.
_LARGE_RATE, _LONGEST_TURN = 10_000_000, 2.0
_CROWDED = "too many large requests arrive; try again later"


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, paths: Iterable[str], limits: Limits, tokens: Sequence[str], metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._paths = frozenset(paths)
        self._tokens = [token.encode() for token in tokens]
        # Requests whose body is complete, and bytes of these bodies; bodies that are not complete, and bytes of those.
        self._in_progress = self._answering = self._uploaded = 0
        self._uploads: dict[asyncio.Timeout, bytearray] = {}
        # When more of a large body may be read.
        self._next_part = 0.0
        self._files = asyncio.Semaphore(FILES)
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
        # A long header that arrived in one piece; `connections` refuses the others.
        if sum(map(len, (scope["raw_path"], scope["query_string"], *chain.from_iterable(scope["headers"])))) > HEADER_BYTES:
            raise Refusal(431, LONG_HEADER)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._tokens and not _local(headers.get(b"host", b"")):
            raise Refusal(421, "without a token this server answers only requests to localhost; set GAUSSCSE_SERVE_TOKEN")
        if scope["path"] in OPEN or scope["path"].startswith(STATIC):
            # The number of open files is limited, and probes use none.
            if scope["path"] not in OPEN and self._files.locked():
                raise Refusal(503, "too many clients fetch this file; try again later")
            async with nullcontext() if scope["path"] in OPEN else self._files:
                await self._app(scope, receive, send)
            return
        if self._tokens and not self._known(headers.get(b"authorization", b"")):
            raise Refusal(401, "send the header `Authorization: Bearer TOKEN` with a token of this server")
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        # At once, and again once its body is complete: only then a request takes a place, so slow clients take none.
        self._check_place(0)
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        body = await self._body(scope, receive, deadline)
        self._check_place(len(body))
        self._limits.check(body)
        self._in_progress += 1
        self._answering += len(body)
        try:
            await self._answer(scope, body, receive, send, deadline)
        finally:
            self._in_progress -= 1
            self._answering -= len(body)

    def _check_place(self, size: int) -> None:
        if self._in_progress >= self._limits.concurrent:
            raise Refusal(503, f"{self._in_progress} requests are in progress; try again later")
        if size > _SMALL and self._answering + size > max(self._limits.bytes_together, self._limits.bytes):
            raise Refusal(503, f"requests with {self._answering} bytes are in progress; try again later")

    async def _body(self, scope: Scope, receive: Receive, deadline: float) -> bytes:
        """The body, which is never held beyond the limit."""
        most = self._limits.bytes
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise _too_large(most)
        clock = asyncio.get_running_loop().time
        slow = clock() + _BODY_SECONDS
        time_left, parts, crowded = asyncio.timeout_at(min(deadline, slow)), bytearray(), False
        try:
            async with time_left:
                self._uploads[time_left] = parts
                try:
                    while True:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise Refusal(400, "the connection ended before the request was complete")
                        parts += (part := message.get("body", b""))
                        self._uploaded += len(part)
                        if len(parts) > most:
                            raise _too_large(most)
                        if not message.get("more_body", False):
                            return bytes(parts)
                        wait = self._turn(len(part)) if len(parts) > _SMALL else 0.0
                        # The client is not to blame for it.
                        slow += wait
                        if time_left in self._uploads and not time_left.expired():
                            time_left.reschedule(min(deadline, clock() + wait + _BODY_SECONDS, slow + len(parts) / _BODY_RATE))
                        if self._uploads and self._uploaded > max(self._limits.bytes_together, most):
                            # The largest makes room, so that small ones need not wait.
                            largest = max(self._uploads, key=lambda one: len(self._uploads[one]))
                            del self._uploads[largest]
                            if not largest.expired():
                                largest.reschedule(0)
                        await asyncio.sleep(wait)
                finally:
                    crowded = self._uploads.pop(time_left, None) is None
                    self._uploaded -= len(parts)
        except TimeoutError:
            if crowded:
                raise Refusal(503, _CROWDED) from None
            raise Refusal(408, _SLOW) from None

    def _turn(self, size: int) -> float:
        """Seconds after which so many bytes of a large body may have been read.

        Raises:
            Refusal: too many others come first.
        """
        now = asyncio.get_running_loop().time()
        # Short, since also the bytes of clients that have gone have their turn.
        if self._next_part - now > _LONGEST_TURN:
            raise Refusal(503, _CROWDED)
        self._next_part = max(self._next_part, now) + size / _LARGE_RATE
        return self._next_part - now

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, deadline: float) -> None:
        """Have the request answered within the time limit."""
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return unread.pop() if unread else await receive()

        try:
            async with asyncio.timeout_at(deadline):
                await _unless_gone(self._app(scope, receive_again, send), receive)
        except TimeoutError:
            late = f"the request was not answered after {self._limits.seconds} s"
            raise Refusal(504, f"{late}; send less at once, or try later") from None

    def _known(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        return scheme.lower() == b"bearer" and any(hmac.compare_digest(token.strip(), known) for known in self._tokens)


def problem(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is refused."""
    headers = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}, 503: {"retry-after": "1"}}.get(status, headers)
    # What came from the request may hold half a character, which JSON in UTF-8 cannot.
    plain = why[:1000].encode("utf-8", "replace").decode()
    return Response(orjson.dumps(error_body(status, plain)), status, headers, media_type="application/json")


def _local(host: bytes) -> bool:
    """True if a Host header names this machine. With DNS rebinding, the name of a page from elsewhere leads to this server."""
    with suppress(ValueError):
        return not host or loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    return False


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
