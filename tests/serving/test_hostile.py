"""Hostile clients without a token: meanwhile, honest clients get their answers, and the front keeps its memory."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import psutil
import pytest
import torch
import uvicorn
from starlette.types import Receive, Scope, Send

from bench import hostile
from bench.hostile import HEAD, KINDS, LIVE, MB, SLOW, upload
from pipeline.models.encoder import GaussianEncoder
from pipeline.serving.connections import BoundedHttp, Connections
from pipeline.serving.limits import Limits
from tests.serving.server import Registry, Server, serving

pytestmark = pytest.mark.faults

FILES = 1024
PAIR = {"a": ["A dog runs."], "b": ["An animal runs."]}


@pytest.fixture(scope="module")
def server(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with as few files as many systems give a process."""
    registry.add(1)
    program = ("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "-", sys.executable, "-m", "pipeline.cli")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving(registry, tmp_path_factory.mktemp("server"), program=program) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def encoder(registry: Registry, server: Server) -> GaussianEncoder:
    return registry.encoder(1)


class Honest:
    """Two clients that ask the same pair all the time, one with a connection for each request, one with a single one."""

    def __init__(self, server: Server) -> None:
        self.server, self.expected = server, server.good("/similarity", PAIR)
        self.answered = 0
        self.wrong: list[Any] = []
        self.most = 0
        self.stop = threading.Event()

    def ask(self, fresh: bool) -> None:
        # Hostile bodies once kept everybody waiting for 33 s.
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        while not self.stop.is_set():
            try:
                connection.request("POST", "/similarity", json.dumps(PAIR), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                got = json.loads(answer.read())
                if (answer.status, got) != (200, self.expected):
                    self.wrong.append(got)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
                connection.close()
            self.answered += 1
            if fresh:
                connection.close()
            self.most = max(self.most, self.server.process.memory_info().rss)
            time.sleep(0.005)
        connection.close()


@contextmanager
def honest(server: Server) -> Iterator[Honest]:
    """Honest clients that ask meanwhile; in the end all their answers were right, and none came too late.

    How much later than on a quiet machine is for `make bench NAME=hostile` to say.
    """
    before = server.process.memory_info().rss
    clients = Honest(server)
    threads = [threading.Thread(target=clients.ask, args=(fresh,)) for fresh in (False, True)]
    for thread in threads:
        thread.start()
    try:
        yield clients
        time.sleep(0.3)
    finally:
        clients.stop.set()
        for thread in threads:
            thread.join()
    assert clients.wrong == []
    assert clients.answered >= 2
    assert max(clients.most, server.process.memory_info().rss) - before < 200 * MB
    assert "Too many open files" not in server.log.read_text(encoding="utf-8")


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    return hostile.connected(server.port, sent)


def said(connection: socket.socket, until: float = 0) -> bytes:
    """All that the server sends until it ends the connection.

    Raises:
        TimeoutError: it does not.
    """
    got = b""
    with connection, suppress(ConnectionResetError):
        while True:
            connection.settimeout(max(0.01, until - time.monotonic()) if until else 60)
            if not (part := connection.recv(65536)):
                break
            got += part
    return got


def test_slow_clients_are_ended(server: Server) -> None:
    """Headers, bodies and silence, 500 connections of each: far more than the server has files for."""
    with honest(server):
        slow = [connected(server, kind) for _ in range(500) for kind in SLOW]
        start = time.monotonic()
        while time.monotonic() < start + 9:
            for connection in slow[-200:]:
                with suppress(OSError):
                    connection.send(b"a" if connection in slow[-200::4] else b"1\r\na\r\n")
            time.sleep(1)
        answers = {said(connection, until=start + 60)[9:12] for connection in slow}
    assert {b"408", b"503"} <= answers <= {b"", b"408", b"503", b"400"}
    assert server.process.num_fds() < FILES / 2


IDLE = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
most = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
idle = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(most)]
"""


def test_ten_thousand_idle_connections_keep_nobody_out(server: Server) -> None:
    with honest(server):
        # A process of its own, so that the honest clients need not wait for it.
        subprocess.run([sys.executable, "-c", IDLE, str(server.port)], check=True)
        assert server.process.num_fds() < FILES


def test_large_bodies_that_stop_before_their_end_make_room(server: Server) -> None:
    with honest(server):
        uploads = [connected(server) for _ in range(80)]
        for connection in uploads:
            with suppress(OSError):
                connection.sendall(upload(1_900_000, sent=1_800_000))
        answers = [said(connection) for connection in uploads]
    # Those that had a place until they sent nothing for too long.
    crowded = [answer for answer in answers if b"408" not in answer]
    assert len(crowded) >= 60
    assert all(b"503" in answer and b"too many large requests" in answer for answer in crowded)


def test_an_endless_body_is_refused_and_its_connection_ended(server: Server) -> None:
    with honest(server), connected(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                connection.sendall(piece)
    status, answer = server.ask("/encode", b"a" * 3 * MB)
    assert (status, answer["error"]["message"].partition(";")[0]) == (413, "the request is larger than 2000000 bytes")


def test_a_body_without_a_length_is_refused(server: Server) -> None:
    got = said(connected(server, HEAD + b"\r\n" + b'{"sentences": ["a"]}'))
    assert got.startswith(b"HTTP/1.1 4") and b"connection: close" in got


def test_pipelined_requests_are_answered_in_order_and_bounded(server: Server) -> None:
    body = json.dumps({"sentences": ["A dog."]}).encode()
    one = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    few = said(connected(server, one + LIVE * 7 + LIVE.replace(b"Host", b"Connection: close\r\nHost")))
    assert few.count(b"HTTP/1.1 200") == 9
    assert b'"mean"' in few.partition(b"live")[0]
    with honest(server):
        flood = [connected(server) for _ in range(20)]
        for connection in flood:
            with suppress(OSError):
                connection.sendall(one + LIVE * 20_000)
        for connection in flood:
            assert 1 <= said(connection).count(b"HTTP/1.1 200") <= 10


def test_a_request_that_asks_for_another_protocol_is_answered(server: Server) -> None:
    """As Java's client and `curl --http2` do with their first request. A tunnel is refused."""
    body = json.dumps(PAIR).encode()
    asks = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"
    head = HEAD.replace(b"/encode", b"/similarity") + asks + b"Content-Length: %d\r\n\r\n" % len(body)
    expected = server.good("/similarity", PAIR)
    with connected(server, head + body + head) as connection:
        for rest in (body, b""):
            got = b""
            while b"}" not in got:
                got += (more := connection.recv(65536))
                assert more
            assert got.startswith(b"HTTP/1.1 200") and json.loads(got.partition(b"\r\n\r\n")[2]) == expected
            connection.sendall(rest)
    assert said(connected(server, b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 400")


def test_a_header_has_at_most_a_hundred_lines(server: Server) -> None:
    live = LIVE.removesuffix(b"\r\n") + b"Connection: close\r\n"
    for lines, status in ((98, b"200"), (99, b"431")):
        got = said(connected(server, live + b"a: b\r\n" * lines + b"\r\n"))
        assert got[9:12] == status, lines
    assert b"have more than 100 lines; send less in them" in got
    trailers = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"a: b\r\n" * 100
    assert said(connected(server, trailers))[9:12] == b"431"


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_body_is_refused_at_once(server: Server, kind: str) -> None:
    with honest(server):
        for _ in range(2):
            headers = {"Content-Encoding": "gzip"} if kind == "zip" else {}
            status, answer = server.ask("/search", hostile.body(kind), headers=headers)
            assert (400 <= status < 500, len(json.dumps(answer)) < 2000) == (True, True), answer


def test_answers_that_nobody_reads_are_given_up(server: Server) -> None:
    get = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with honest(server):
        deaf = [connected(server, get * 8) for _ in range(100)]
        time.sleep(2)
        for connection in deaf:
            connection.close()


@pytest.mark.parametrize("long", [False, True])
def test_small_requests_do_not_wait_behind_large_ones(server: Server, encoder: GaussianEncoder, long: bool) -> None:
    """Four clients of large requests; and one of texts that are far longer than the model reads."""
    texts = [f"A dog runs {row} times. " * (150 if long else 1) for row in range(512 if long else 1024)]
    got: list[Any] = []
    clients = [
        threading.Thread(target=lambda: got.append(server.good("/encode", {"sentences": texts}))) for _ in range(1 if long else 4)
    ]
    with honest(server) as small:
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        # Not one after all pieces of the others.
        assert small.answered >= 10
    for answer in got:
        torch.testing.assert_close(torch.tensor(answer["mean"]), encoder.encode(texts).mean, rtol=1e-4, atol=1e-5)
        assert answer["cut"] == (len(texts) if long else 0)
    means = server.good("/v1/embeddings", {"model": f"{server.good('/health')['serving']['model']}", "input": texts})
    assert means["usage"]["total_tokens"] == encoder.encode_counted(texts)[1].tokens.sum()


@pytest.fixture(scope="module")
def with_replicas(registry: Registry, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # By another engine, since most tests of replicas are by torch.
    options = ["--replicas", "1:2", "--max-concurrent", "2", "--engine", "openvino"]
    with serving(registry, tmp_path_factory.mktemp("replicas"), options) as running:
        yield running


def test_replicas_compute_by_the_engine(server: Server, with_replicas: Server) -> None:
    expected = server.good("/similarity", PAIR)
    assert with_replicas.good("/similarity", PAIR)["similarity"] == pytest.approx(expected["similarity"], rel=1e-4)
    for replica in with_replicas.replicas(1):
        assert any("libopenvino" in held.path for held in replica.memory_maps())


def test_too_many_requests_at_once_are_refused(with_replicas: Server) -> None:
    """Two requests take both places while their replica is suspended; two bodies that are not complete take none."""
    sent = HEAD + b'Content-Length: 30\r\n\r\n{"sentences": ["A dog runs."]}'
    slow, whole = ([connected(with_replicas, piece) for _ in range(2)] for piece in (sent[:-1], b""))
    with_replicas.good("/similarity", PAIR)
    (replica,) = with_replicas.replicas(1)
    replica.suspend()
    try:
        for connection in whole:
            connection.sendall(sent)
        with_replicas.until(lambda: "gausscse_serve_in_progress 2.0" in with_replicas.good("/metrics"), "both are in progress")
        status, answer = with_replicas.ask("/similarity", PAIR)
    finally:
        replica.resume()
    assert (status, answer["error"]["message"]) == (503, "2 requests are in progress; try again later")
    for connection in whole:
        assert b" 200 OK" in connection.recv(100)
    for connection in (*slow, *whole):
        connection.close()


def test_a_replica_that_hangs_is_not_ready_and_is_replaced(with_replicas: Server) -> None:
    hung = with_replicas.replicas(1)
    for replica in hung:
        replica.suspend()
    try:
        waited = with_replicas.until(lambda: with_replicas.ask("/ready")[0] == 503, "it is not ready")
        assert with_replicas.until(lambda: with_replicas.ask("/ready")[0] == 200, "another one is") + waited < 60
    finally:
        for replica in hung:
            with suppress(psutil.NoSuchProcess):
                replica.resume()
    assert {*with_replicas.replicas(1)} - {*hung}
    with_replicas.good("/similarity", PAIR)


def test_a_pipelined_request_with_a_body_of_any_size_is_answered(server: Server) -> None:
    text = ["A dog runs."]
    bodies = [json.dumps({"sentences": text * many}).encode() for many in (200, 1000)]
    assert len(bodies[1]) < 32_768 < len(bodies[1]) * 4
    bodies.append(json.dumps({"sentences": ["A dog runs. " * 1000] * 10}).encode())
    assert len(bodies[2]) > 100_000
    connection = connected(server, b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies))
    connection.settimeout(60)
    got = b""
    while got.count(b"HTTP/1.1 200 OK") < 3:
        got += (more := connection.recv(1_000_000))
        assert more
    connection.close()


def test_large_answers_are_kept_for_clients_that_read_and_not_for_others() -> None:
    """Answers of 12 MB, more together than the server keeps for clients that read nothing; others read 5 MB a second."""
    size, clients = 12_000_000, 8

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def read(port: int, pause: float) -> tuple[int, float]:
        """Bytes of the answer, and seconds until it ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        start, got = time.monotonic(), 0
        with suppress(ConnectionError):
            await asyncio.sleep(pause)
            while part := await reader.read(250_000):
                got += len(part)
                await asyncio.sleep(0.05)
        writer.close()
        return got, time.monotonic() - start

    async def run() -> tuple[list[int], list[int]]:
        connections, listening = Connections(Limits()), socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(answer, http=cast(Any, partial(BoundedHttp, connections)), log_level="error", lifespan="off")
        front = uvicorn.Server(config)
        serving, watching = asyncio.create_task(front.serve([listening])), asyncio.create_task(connections.watch())
        port = listening.getsockname()[1]
        reading, deaf = (asyncio.gather(*(read(port, pause) for _ in range(clients))) for pause in (0.0, 8.0))
        found = [got for got, _ in await reading], [got for got, _ in await deaf]
        front.should_exit = True
        await serving
        watching.cancel()
        return found

    reading, deaf = asyncio.run(run())
    assert min(reading) > size
    assert max(deaf) < size
