"""`gausscse serve` and `mlflow models serve` on this machine, one after the other, with clients on the same cores."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.corpus import Corpus, corpus
from bench.measure import Row, resident, started, use_threads
from pipeline.config.execution import TrackingParams
from pipeline.models.canaries import record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES
from pipeline.registry.versions import add_version
from pipeline.serving.batches import Batches
from pipeline.serving.model import Job, Model
from pipeline.serving.runtime import InProcess
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import open_tracker
from pipeline.utils.atomic_io import SUMS, sha256_file, write_sums
from pipeline.utils.cores import cores

NAME, BATCH, PATIENCE = "bench", 64, 240.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and how it is asked."""

    port: int
    process: psutil.Process
    similarity: Callable[[str, str], tuple[str, bytes]]
    """Path and body of a request for the similarity of a pair."""
    encode: Callable[[Sequence[str]], tuple[str, bytes]]
    """The same for the Gaussians of sentences."""
    started_at: float
    """`time.perf_counter` when its command was started."""


@dataclass(frozen=True, slots=True)
class Load:
    """The outcome of some requests."""

    rate: float
    """Requests per second."""
    p50: float
    p99: float
    """Milliseconds."""
    peak_mb: float
    """Of the server's largest process."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a server."""

    loads: dict[str, Load]
    """Kind of request → the outcome."""
    start: float
    """Seconds from its command to its first answer."""
    memory_mb: float
    """Of all its processes after the requests, in which shared pages count once."""


def run(quick: bool) -> list[Row]:
    """One pair per request from 1, 8 and 64 clients, and many sentences per request from one client; no sentence comes twice.

    Then the start, the memory, the stages of a request, and the rate next to that of one call with all sentences.
    """
    data = corpus()
    requests, clients = (8, (1, 2)) if quick else (640, (1, 8, 64))
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(data.texts)))
    with tempfile.TemporaryDirectory() as folder:
        uri = _registered(Path(folder), data, sentences[:33])
        measured: list[Measured] = []
        for opened in (_mlflow(Path(folder), uri), _ours(Path(folder), uri, 1), _ours(Path(folder), uri, 2)):
            with opened as server:
                measured.append(_measured(server, sentences, requests, clients))
        use_threads()
        model = Model(Path(folder) / "encoder", "cpu")
        call, batched = _stages(
            model, Path(folder) / "encoder", [Job("similarity", [a], [b]) for a, b in _pairs(sentences, requests)]
        )
        start = time.perf_counter()
        model.answers([Job("means", list(sentences[: 4 * requests]))])
        bulk = min(4 * requests, len(sentences)) / (time.perf_counter() - start)
    theirs, one, two = measured
    rows: list[Row] = []
    for ours, more in ((one, ""), (two, ", up to 2 replicas")):
        rows += [_row(f"{name}{more}", load, theirs.loads[name]) for name, load in ours.loads.items()]
        for what, unit, mine, other in (
            ("start to first answer", "s", ours.start, theirs.start),
            ("memory of all processes", "MB", ours.memory_mb, theirs.memory_mb),
        ):
            rows.append(
                Row(
                    name=f"serve {what}{more}",
                    ours=mine,
                    baseline=other,
                    ratio=other / mine,
                    unit=unit,
                    peak_mb=None,
                    note="baseline: mlflow models serve",
                )
            )
    (whole, *_, most, _) = one.loads.values()
    parts = {"encode": call, "hop and wait": batched - call, "front": whole.p50 - batched}
    rows += [
        Row(name=f"serve one pair: {part}", ours=part_ms, unit="ms", peak_mb=None, note="p50") for part, part_ms in parts.items()
    ]
    note = "pairs by the most clients; baseline: one call of the encoder with many sentences"
    rows.append(
        Row(
            name="serve sentences of pairs",
            ours=2 * most.rate,
            baseline=bulk,
            ratio=2 * most.rate / bulk,
            unit="sentences/s",
            peak_mb=None,
            note=note,
        )
    )
    return rows


def _pairs(sentences: Sequence[str], number: int) -> list[tuple[str, str]]:
    texts = iter(sentences)
    return list(itertools.islice(zip(texts, texts, strict=False), number))


def _stages(model: Model, folder: Path, jobs: Sequence[Job]) -> tuple[float, float]:
    """Milliseconds (p50) of a pair in a call of the model, and of one sent through `Batches` to a model in this process."""

    async def in_turn() -> tuple[list[float], list[float]]:
        batches = Batches(InProcess(cores(), PATIENCE).start(NAME, str(folder), lambda: False), lambda: None)
        called: list[float] = []
        sent: list[float] = []
        for job in jobs:
            start = time.perf_counter()
            model.answers([job])
            middle = time.perf_counter()
            await batches.answer(job)
            called.append(middle - start)
            sent.append(time.perf_counter() - middle)
        return called, sent

    called, sent = (1000 * statistics.median(seconds) for seconds in asyncio.run(in_turn()))
    return called, sent


def _measured(server: Server, sentences: Sequence[str], requests: int, clients: Sequence[int]) -> Measured:
    """Requests of each kind. Each number of clients gets sentences of its own, so no cache can help."""
    texts = iter(sentences)
    _load(server, [server.similarity("A dog runs.", "An animal moves.")], 1)
    start = time.perf_counter() - server.started_at
    warm = [server.similarity(next(texts), next(texts)) for _ in range(max(clients))]
    _load(server, warm, max(clients))
    loads: dict[str, Load] = {}
    for count in clients:
        asked = [server.similarity(next(texts), next(texts)) for _ in range(requests)]
        loads[f"serve similarity, a pair a request, {count} at once"] = _load(server, asked, count)
    asked = [server.encode(list(itertools.islice(texts, BATCH))) for _ in range(max(1, requests // 16))]
    loads[f"serve encode, {BATCH} sentences a request, 1 at once"] = _load(server, asked, 1)
    tree = (server.process, *server.process.children(recursive=True))
    return Measured(loads, start, sum(one.memory_full_info().pss for one in tree) / 1e6)


def _row(name: str, ours: Load, theirs: Load) -> Row:
    return Row(
        name=name,
        ours=ours.rate,
        baseline=theirs.rate,
        ratio=ours.rate / theirs.rate,
        unit="requests/s",
        peak_mb=ours.peak_mb,
        baseline_peak_mb=theirs.peak_mb,
        note=f"p50 {ours.p50:.3g} ms, p99 {ours.p99:.3g} ms; baseline: mlflow models serve, p50 {theirs.p50:.3g} ms, "
        f"p99 {theirs.p99:.3g} ms; peak of each server's largest process",
    )


def _load(server: Server, requests: Sequence[tuple[str, bytes]], clients: int) -> Load:
    """Send all requests. A client uses one connection and sends its next request once it has the last answer."""

    def client(own: Sequence[tuple[str, bytes]]) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        seconds: list[float] = []
        for path, body in own:
            start = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != 200:
                raise RuntimeError(f"the server answers {answer.status}: {text[:500]!r}")
        connection.close()
        return seconds

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = sorted(itertools.chain.from_iterable(pool.map(client, [requests[n::clients] for n in range(clients)])))
    rate = len(requests) / (time.perf_counter() - start)
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    peak = max(resident("VmHWM", process.pid) for process in (server.process, *server.process.children(recursive=True)))
    return Load(rate, 1000 * statistics.median(seconds), 1000 * p99, peak / 1e6)


def _registered(folder: Path, data: Corpus, sentences: Sequence[str]) -> str:
    """The URI of a registry with the packaged encoder as champion, with canary pairs of these sentences."""
    encoder = GaussianEncoder.from_backbone(data.params.model, 1).eval()
    encoder.save_pretrained(folder / "encoder")
    canaries = record(encoder, sentences)
    assert canaries is not None
    (folder / "encoder" / CANARIES).write_text(to_text(canaries), encoding="utf-8")
    write_sums(folder / "encoder")
    tracker = open_tracker(TrackingParams(uri=f"sqlite:///{folder}/mlflow.db", experiment=NAME), folder)
    tags = {"model_digest": sha256_file(folder / "encoder" / SUMS)}
    version = add_version(tracker, NAME, folder / "encoder", pipeline_run(tracker, "0" * 64, {}, {}), tags)
    tracker.client.set_registered_model_alias(NAME, "champion", version.version)
    return tracker.uri


def _mlflow(folder: Path, uri: str) -> AbstractContextManager[Server]:
    def body(operation: str, rows: list[dict[str, Any]]) -> tuple[str, bytes]:
        return "/invocations", json.dumps({"dataframe_records": rows, "params": {"operation": operation}}).encode()

    return _server(
        ["mlflow", "models", "serve", "-m", f"models:/{NAME}@champion", "--env-manager", "local"],
        *("/health", folder, uri),
        lambda a, b: body("similarity", [{"a": a, "b": b}]),
        lambda sentences: body("encode", [{"sentence": sentence} for sentence in sentences]),
    )


def _ours(folder: Path, uri: str, most: int) -> AbstractContextManager[Server]:
    """`gausscse serve` with one replica, to which Ray Serve may add others up to `most`."""
    return _server(
        [sys.executable, "-m", "pipeline.cli", "serve", "--name", NAME, "--replicas", f"1:{most}"],
        *("/ready", folder, uri),
        lambda a, b: ("/similarity", json.dumps({"a": [a], "b": [b]}).encode()),
        lambda sentences: ("/encode", json.dumps({"sentences": sentences}).encode()),
    )


@contextmanager
def _server(
    command: Sequence[str], probe: str, folder: Path, uri: str, *bodies: Callable[..., tuple[str, bytes]]
) -> Iterator[Server]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env, start = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PATH": path}, time.perf_counter()
    with started([*command, "--port"], probe, folder / "server.log", PATIENCE, env) as (port, process):
        yield Server(port, process, *bodies, started_at=start)
