"""An HTTP proxy in front of an S3 server that fails on demand.

Faults by kind: `503` (SlowDown), `500` and `403` answer with that status; `hang` accepts the request and never answers; `slow`
passes it on after a while; `reset` closes the connection. A fault begins with a request, ends some seconds after it, and touches
only the requests that match.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CODES = {"503": "SlowDown", "500": "InternalError", "403": "AccessDenied"}
# Seconds by which `slow` delays each answer.
_SLOW = 1.0


class FaultyS3(ThreadingHTTPServer):
    """The proxy. `storage` is its own name, as cluster.storage has it."""

    daemon_threads = True

    def __init__(self, storage: str, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address, self.target = f"127.0.0.1:{self.server_port}", target
        self.storage = storage.replace(target, self.address)
        self.requests: list[str] = []
        """All requests so far, as "METHOD /bucket/name"."""
        self.disturbed = 0
        """How many requests met a fault so far."""
        self._lock = threading.Lock()
        self.heal()

    def fail(self, kind: str, seconds: float, match: str = "", *, after: int = 0, most: int = -1) -> None:
        """Fail the requests after the next `after`, for some seconds from the first of them on, `most` of them at most (-1: all).
        Only requests count in which `match` is found; it is searched for in "METHOD /bucket/name"."""
        with self._lock:
            self._kind, self._seconds, self._match, self._spared, self._left = kind, seconds, re.compile(match), after, most
            self._until: float | None = None

    def heal(self) -> None:
        self.fail("", 0.0)

    @property
    def over(self) -> bool:
        """True if there is no fault, or the last one has ended."""
        return not self._kind or (self._until is not None and time.monotonic() >= self._until)

    def fault_of(self, request: str) -> str:
        """Kind of the fault that a request ("GET /bucket/name") meets, "" for none."""
        with self._lock:
            self.requests.append(request)
            if self.over or not self._left or not self._match.search(request):
                return ""
            if self._spared:
                self._spared -= 1
                return ""
            self._until = self._until or time.monotonic() + self._seconds
            self._left -= 1
            self.disturbed += 1
            return self._kind


class _Handler(BaseHTTPRequestHandler):
    server: FaultyS3  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        if status not in (204, 304):
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def handle_one(self) -> None:
        body = self._body()
        kind = self.server.fault_of(f"{self.command} {self.path}")
        if kind in _CODES:
            text = f"<Error><Code>{_CODES[kind]}</Code><Message>asked for by a test</Message></Error>"
            self._answer(int(kind), text.encode(), [("Content-Type", "application/xml")])
            return
        if kind in ("hang", "reset"):
            while kind == "hang" and not self.server.over:
                time.sleep(0.05)
            self.close_connection = True
            return
        if kind == "slow":
            time.sleep(_SLOW)
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        # The chunks have become one body.
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("transfer-encoding", "expect")}
        connection.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
        response = connection.getresponse()
        self._answer(response.status, response.read(), response.getheaders())
        connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one


@contextmanager
def faulty(storage: str) -> Iterator[FaultyS3]:
    """A proxy before the S3 server of a storage, while the block runs."""
    found = re.search(r"endpoint_override=([^&]+)", storage)
    assert found is not None
    with FaultyS3(storage, found[1]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
