"""Promotions, rollbacks and dying replicas while clients ask: nothing is lost, and no failing champion answers."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.models.model_dir import CANARIES
from pipeline.utils.atomic_io import write_sums
from tests.serving.server import PATIENCE, SENTENCES, Registry, Server, serving

CLIENTS = 24
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def server(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ctrl-C ends it."""
    registry.add(1)
    options = ["--replicas", "1:2", "--max-seconds", "300"]
    with serving(registry, tmp_path_factory.mktemp("server"), options, end=signal.SIGINT) as running:
        yield running


WORDS = ("dog", "child", "woman", "horse", "singer", "pilot", "teacher", "bird")


@dataclass
class Load:
    """The answers so far: sentences, status, body."""

    answers: list[tuple[str, str, int, Any]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    sent: int = 0

    def number(self) -> int:
        return len(self.answers)


@contextmanager
def load(server: Server, clients: int) -> Iterator[Load]:
    """Ask while the block runs; at its end, all clients have their last answer."""
    taken, over = Load(), threading.Event()

    def client(own: int) -> None:
        count = 0
        while not over.is_set():
            a, b = f"The {WORDS[count % 8]} number {own * 1_000_000 + count} runs.", f"Somebody with number {count} moves."
            count += 1
            taken.sent += 1
            try:
                status, body = server.ask("/similarity", {"a": [a], "b": [b]})
            except BaseException as error:
                taken.faults.append(error)
                return
            taken.answers.append((a, b, status, body))

    threads = [threading.Thread(target=client, args=(own,)) for own in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield taken
    finally:
        over.set()
        for thread in threads:
            thread.join()


def other_scores(folder: Path) -> None:
    """Canary pairs with a score that the model does not give, under correct sums."""
    content = json.loads((folder / CANARIES).read_text(encoding="utf-8"))
    content["similarity"][7] *= 1.05
    (folder / CANARIES).write_text(json.dumps(content), encoding="utf-8")
    write_sums(folder)


def unreadable(folder: Path) -> None:
    """Canary pairs that are cut off, under correct sums."""
    text = (folder / CANARIES).read_text(encoding="utf-8")
    (folder / CANARIES).write_text(text[: len(text) // 2], encoding="utf-8")
    write_sums(folder)


def metric(server: Server, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (\S+)$", server.good("/metrics"), re.MULTILINE)
    return float(match[1]) if match else 0.0


def more(server: Server, taken: Load, answers: int) -> None:
    """Wait for more answers."""
    goal = taken.number() + answers
    server.until(lambda: taken.number() >= goal or bool(taken.faults), "the clients get answers")


def test_nothing_is_lost_while_champions_change_and_a_replica_dies(registry: Registry, server: Server) -> None:
    with load(server, CLIENTS) as taken:
        more(server, taken, CLIENTS)
        second = registry.add(2)
        registry.promote(second)
        server.until(lambda: server.serves(second), "the second version answers")
        more(server, taken, CLIENTS)

        # A model in the server's process has none.
        # Calls stay in a stopped replica, and another one is started, if the load had not started two already. Then the stopped
        # ones die with their requests. A replica that is faster than the front may have none just then; then it is done again.
        for _ in range(10 if server.replicas(second) else 0):
            stopped = server.replicas(second)
            for replica in stopped:
                replica.send_signal(signal.SIGSTOP)
            server.until(lambda: metric(server, "gausscse_serve_replicas") == 2, "the autoscaler starts a second replica")
            for replica in stopped:
                replica.kill()
            more(server, taken, 2 * CLIENTS)
            # Ray may notice the death only after the other replica has answered for a while.
            if any(metric(server, "gausscse_serve_resent_total") >= 1 or time.sleep(1) for _ in range(10)):
                break
        assert (metric(server, "gausscse_serve_resent_total") >= 1) == bool(server.replicas(second))

        registry.rollback()
        server.until(lambda: server.serves(1), "the first version answers again")
        more(server, taken, CLIENTS)
    assert taken.faults == []
    assert [answer for answer in taken.answers if answer[2] != 200] == []
    # Each answer is that of the version that it names, whole.
    by_model: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for a, b, _, body in taken.answers:
        by_model[body["model"]].append((a, b, *body["similarity"]))
    assert set(by_model) == {f"{registry.name}/1", f"{registry.name}/2"}
    # Batches differ in how they are padded, which moves the last digits of float32.
    for model, rows in by_model.items():
        a, b, answered = zip(*rows, strict=True)
        expected = registry.encoder(int(model.rpartition("/")[2])).similarity(a, b).tolist()
        assert list(answered) == pytest.approx(expected, rel=3e-4)


def in_call(server: Server, number: int, call: str) -> psutil.Process:
    """The replica of a version once it is at a call, after which Ray names its process."""
    deadline = time.monotonic() + PATIENCE
    replicas: list[psutil.Process] = []
    while time.monotonic() < deadline and server.process.is_running():
        # To list them takes longer than to look at one. While Ray changes a process's name, the process may seem to have none.
        replicas = [replica for replica in replicas if replica.is_running()] or server.replicas(number)
        for replica in replicas:
            with suppress(psutil.NoSuchProcess):
                if "".join(replica.cmdline()[:1]).endswith(call):
                    return replica
        time.sleep(0.002)
    raise AssertionError(f"no replica of version {number} is at {call}; {server.lines()}")


@pytest.mark.weekly
def test_replicas_of_both_versions_die_during_a_swap(registry: Registry, server: Server) -> None:
    old = server.good("/health")["serving"]["version"]
    # With so many canary pairs its check takes a while.
    new = registry.add(10, sentences=[f"{sentence} {count}" for count in range(200) for sentence in SENTENCES])
    # Few clients, which leave time for the starts.
    with load(server, 4) as taken:
        more(server, taken, 4)
        registry.promote(new)
        starting = in_call(server, new, ".initialize_and_get_metadata")
        starting.kill()
        starting.wait()

        # The only call before the swap is the shadow check. Meanwhile all replicas of the old version die, and others answer.
        checked = in_call(server, new, ".handle_request_with_rejection")
        checked.suspend()
        for replica in server.replicas(old):
            replica.kill()
        more(server, taken, 8)
        assert server.serves(old)
        # Ray kills it if that took so long that it missed its health checks.
        with suppress(psutil.NoSuchProcess):
            checked.kill()
        begun = taken.number()
        assert {body["model"] for *_, body in taken.answers[:begun]} == {f"{registry.name}/{old}"}

        server.until(lambda: server.serves(new), "the new version answers")
        more(server, taken, 4)
    assert taken.faults == []
    assert [answer for answer in taken.answers if answer[2] != 200] == []


def refused(server: Server, number: int) -> str:
    """Why the server keeps a champion out, once it does."""
    server.until(lambda: server.good("/health")["refused"] is not None, f"version {number} is refused")
    found = server.good("/health")["refused"]
    assert found["number"] == number
    return found["reason"]


def test_a_champion_that_fails_its_canaries_stays_out_and_says_so(registry: Registry, server: Server) -> None:
    before = server.good("/health")["serving"]["version"]
    third = registry.add(3, spoil=other_scores)
    registry.promote(third)
    reason = refused(server, third)
    assert "similarity of canary pair 7 is" in reason
    assert "(1 of 15 pairs are off)" in reason
    health = server.good("/health")
    assert (health["status"], health["serving"]["version"]) == ("degraded", before)
    assert metric(server, "gausscse_serve_refused_version") == third
    assert f"version {third} is champion and stays out: similarity of canary pair 7" in server.lines()
    assert server.good("/encode", {"sentences": ["A dog runs."]})["model"].endswith(f"/{before}")
    registry.rollback()
    server.until(lambda: server.good("/health")["status"] == "ok", "the refusal is over")
    assert metric(server, "gausscse_serve_refused_version") == 0


def test_a_champion_with_changed_files_stays_out(registry: Registry, server: Server) -> None:
    before = server.good("/health")["serving"]["version"]
    fourth = registry.add(4)
    location = registry.tracker.client.get_model_version_download_uri(registry.name, str(fourth)).removeprefix("file://")
    weights = next(Path(location).rglob("model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    registry.promote(fourth)
    assert "model.safetensors" in refused(server, fourth)
    assert server.serves(before)
    # It is tried again, because a storage may recover.
    content[-1] ^= 1
    weights.write_bytes(content)
    server.until(lambda: server.serves(fourth), "the fourth version answers once its files are whole again")


def test_a_model_without_readable_canaries_stays_out(registry: Registry, server: Server) -> None:
    before = server.good("/health")["serving"]["version"]
    damaged, bare = registry.add(5, spoil=unreadable), registry.add(6, sentences=())
    for version, why in (
        (damaged, "canaries.json: not canary pairs that this version can read"),
        (bare, "it has no canary pairs (canaries.json); register it again"),
    ):
        registry.promote(version)
        server.until(lambda version=version: (server.good("/health")["refused"] or {}).get("number") == version, "it is refused")
        assert why in refused(server, version)
        assert server.serves(before)


def resume_when_closed(port: int, stopped: Sequence[psutil.Process]) -> None:
    """Let stopped processes go on once a port takes no connections."""
    with suppress(OSError):
        while True:
            socket.create_connection(("127.0.0.1", port), 1).close()
            time.sleep(0.05)
    for process in stopped:
        process.resume()


def test_sigterm_answers_what_is_in_progress(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = registry.add(8)
    # The first version of all is champion by itself.
    if version > 1:
        registry.promote(version)
    # That of the tests themselves.
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    with serving(registry, tmp_path, ["--replicas", "1:2", "--max-seconds", "300"]) as server:
        assert server.serves(version)
        assert [replica.nice() for replica in server.replicas(version)] == [server.process.nice()]

        # All are in progress when the server is asked to end, because their replicas stop until it takes no new connections.
        answers: list[tuple[int, Any]] = []
        stopped = server.replicas(version)
        for replica in stopped:
            replica.suspend()
        many = {"sentences": [f"The dog number {row} runs." for row in range(100)]}
        clients = [threading.Thread(target=lambda: answers.append(server.ask("/encode", many))) for _ in range(3)]
        for thread in clients:
            thread.start()
        server.until(lambda: metric(server, "gausscse_serve_in_progress") == 3, "all are in progress")
        assert answers == []
        resuming = threading.Thread(target=resume_when_closed, args=(server.port, stopped))
        resuming.start()
    # SIGTERM has ended it.
    for thread in (resuming, *clients):
        thread.join()
    assert [(status, len(body["mean"])) for status, body in answers] == [(200, 100)] * 3
