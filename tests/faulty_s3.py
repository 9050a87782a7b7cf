"""An HTTP proxy in front of an S3 server that fails on demand: a separate process, and the handle to it.

Faults by kind: `503` (SlowDown), `500` and `403` answer with that status; `hang` accepts the request and never answers; `slow`
passes it on after a while; `reset` closes the connection. A fault begins with a request, ends some seconds after it, and touches
only the requests that match.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

_CODES = {"503": "SlowDown", "500": "InternalError", "403": "AccessDenied"}
_CONTROL = "/__control__/"
# Seconds by which `slow` delays each answer.
_SLOW = 1.0


class _State:
    """The current fault, and the requests so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kind, self.seconds, self.match, self.spared, self.left = "", 0.0, re.compile(""), 0, 0
        self.until: float | None = None
        self.requests: list[str] = []
        self.disturbed = 0

    def fault_of(self, request: str) -> str:
        """Kind of the fault that a request ("GET /bucket/name") meets, "" for none."""
        with self.lock:
            self.requests.append(request)
            if self.over() or not self.left or not self.match.search(request):
                return ""
            if self.spared:
                self.spared -= 1
                return ""
            self.until = self.until or time.monotonic() + self.seconds
            self.left -= 1
            self.disturbed += 1
            return self.kind

    def over(self) -> bool:
        """Whether there is no fault, or the last one has ended."""
        return not self.kind or (self.until is not None and time.monotonic() >= self.until)


def _serve(target: str) -> None:
    state = _State()

    class Handler(BaseHTTPRequestHandler):
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

        def _control(self) -> None:
            words = json.loads(self.headers["X-Control"])
            with state.lock:
                if "kind" in words:
                    state.kind, state.match = words["kind"], re.compile(words["match"])
                    state.spared, state.left = words["after"], words["most"]
                    state.seconds, state.until = words["seconds"], None
                answer = {"requests": state.requests, "disturbed": state.disturbed, "over": state.over()}
            self._answer(200, json.dumps(answer).encode(), [])

        def handle_one(self) -> None:
            if self.path.startswith(_CONTROL):
                self._control()
                return
            body = self._body()
            kind = state.fault_of(f"{self.command} {self.path}")
            if kind in _CODES:
                text = f"<Error><Code>{_CODES[kind]}</Code><Message>asked for by a test</Message></Error>"
                self._answer(int(kind), text.encode(), [("Content-Type", "application/xml")])
                return
            if kind in ("hang", "reset"):
                while kind == "hang" and not state.over():
                    time.sleep(0.05)
                self.close_connection = True
                return
            if kind == "slow":
                time.sleep(_SLOW)
            connection = http.client.HTTPConnection(target, timeout=60)
            # The chunks have become one body.
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("transfer-encoding", "expect")}
            connection.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            response = connection.getresponse()
            self._answer(response.status, response.read(), response.getheaders())
            connection.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


@dataclass(frozen=True)
class FaultyS3:
    """The proxy, as tests use it."""

    storage: str
    """Its storage, as cluster.storage names it."""
    address: str

    def fail(self, kind: str, seconds: float, match: str = "", *, after: int = 0, most: int = -1) -> None:
        """Fail the requests after the next `after`, for some seconds from the first of them on, `most` of them at most (-1: all).
        Only requests count in which `match` is found; it is searched for in "METHOD /bucket/name"."""
        self._control({"kind": kind, "seconds": seconds, "match": match, "after": after, "most": most})

    def heal(self) -> None:
        self.fail("", 0.0)

    @property
    def over(self) -> bool:
        """Whether the last requested fault has ended."""
        return bool(self._control({})["over"])

    @property
    def requests(self) -> list[str]:
        """All requests so far, as "METHOD /bucket/name"."""
        return list(self._control({})["requests"])

    @property
    def disturbed(self) -> int:
        """How many requests met a fault so far."""
        return int(self._control({})["disturbed"])

    def _control(self, words: dict[str, Any]) -> dict[str, Any]:
        with urlopen(Request(f"http://{self.address}{_CONTROL}", headers={"X-Control": json.dumps(words)}), timeout=30) as answer:
            return json.loads(answer.read())


@contextmanager
def faulty(storage: str) -> Iterator[FaultyS3]:
    """A proxy before the S3 server of a storage, while the block runs."""
    found = re.search(r"endpoint_override=([^&]+)", storage)
    assert found is not None
    with subprocess.Popen([sys.executable, str(Path(__file__)), found[1]], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = f"127.0.0.1:{process.stdout.readline().strip()}"
        try:
            yield FaultyS3(storage.replace(found[1], address), address)
        finally:
            process.kill()


if __name__ == "__main__":
    _serve(sys.argv[1])
