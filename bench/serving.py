"""`gausscse serve` by each engine, and other servers of the same weights, one after the other, with clients on the same cores:
`mlflow models serve`, FastAPI with ONNX Runtime (`bench.floor`), and infinity, if INFINITY names its program. That one wants an
environment of its own, with numpy 1:

    python3 -m venv infinity
    infinity/bin/pip install torch==2.13.0 "infinity-emb[server,torch]==0.0.78" "transformers<5"
    INFINITY=infinity/bin/infinity_emb make bench NAME=serving
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.corpus import Corpus, corpus
from bench.measure import ROOT, Row, in_turn, resident, started, use_threads
from pipeline.config.execution import TrackingParams
from pipeline.inference.onnx_export import export_onnx
from pipeline.models.canaries import record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, ENGINES, Engine
from pipeline.registry.versions import add_version
from pipeline.serving.batches import Batches
from pipeline.serving.model import Job, Model
from pipeline.serving.runtime import InProcess
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import open_tracker
from pipeline.utils.atomic_io import SUMS, sha256_file, write_json, write_sums
from pipeline.utils.cores import cores

NAME, BATCH, PATIENCE = "bench", 64, 240.0
INFINITY = "INFINITY"
_OURS = {
    "torch": ["--engine", "torch"],
    "torch, up to 2 replicas": ["--replicas", "1:2"],
    "openvino": ["--engine", "openvino"],
    "openvino-int8": ["--engine", "openvino-int8"],
}


# Path and body of a request about these sentences.
Ask = Callable[..., tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and how it is asked."""

    port: int
    process: psutil.Process
    asks: Mapping[str, Ask]
    """What it can be asked, by name: similarity of a pair, means (of a pair), many (Gaussians)."""
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

    Then the start, the memory, the stages of a request, and by each engine the rate next to that of one call with all sentences.
    """
    data = corpus()
    requests, clients = (8, (1, 2)) if quick else (640, (1, 8, 64))
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(data.texts)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        uri = registered(folder, data, sentences[:33])
        opened = {"mlflow models serve": _mlflow(folder, uri)} | {
            name: ours_server(folder, uri, options)
            for name, options in _OURS.items()
            if not quick or name != "torch, up to 2 replicas"
        }
        opened["FastAPI + ONNX Runtime"] = _floor(folder)
        if INFINITY in os.environ:
            opened["infinity"] = _infinity(folder)
        measured: dict[str, Measured] = {}
        for name, server in opened.items():
            with server as running:
                measured[name] = _measured(running, sentences, requests, clients)
        use_threads()
        models = {engine: Model(folder / "encoder", "cpu", engine) for engine in ENGINES}
        pairs, many = _pairs(sentences, requests), [Job("means", list(sentences[: 4 * requests]))]
        parts = {engine: _stages(models[engine], folder / "encoder", engine, pairs) for engine in ENGINES}
        seconds = in_turn({engine: partial(model.answers, many) for engine, model in models.items()}, 1 if quick else 5)
        bulk = {engine: len(many[0].first) / statistics.median(own) for engine, own in seconds.items()}
    rows = [
        row
        for name, ours in measured.items()
        if name in _OURS
        for other, theirs in measured.items()
        if other not in _OURS
        for row in _against(ours, theirs, name, other)
    ]
    for engine, (call, batched) in parts.items():
        # The rest is the front's: HTTP and JSON.
        stages = {"encode": call, "hop and wait": batched - call}
        rows += [
            Row(name=f"serve one pair, {engine}: {part}", ours=ms, unit="ms", peak_mb=None, note="p50")
            for part, ms in stages.items()
        ]
        # Each pair has two sentences; the most clients come last.
        rate = 2 * [load.rate for kind, load in measured[engine].loads.items() if kind.startswith("similarity")][-1]
        rows.append(
            Row(
                name=f"serve sentences of pairs, {engine}",
                ours=rate,
                baseline=bulk[engine],
                ratio=rate / bulk[engine],
                unit="sentences/s",
                peak_mb=None,
                note="pairs by the most clients; baseline: one call of the encoder with many sentences",
            )
        )
    rows += [
        Row(
            name=f"encode many sentences, {engine}",
            ours=bulk[engine],
            baseline=bulk["torch"],
            ratio=bulk[engine] / bulk["torch"],
            unit="sentences/s",
            peak_mb=None,
            note="one call of the encoder; baseline: torch",
        )
        for engine in ENGINES[1:]
    ]
    return rows


def _against(ours: Measured, theirs: Measured, name: str, other: str) -> list[Row]:
    rows = [
        _row(f"serve {kind}, {name}", load, theirs.loads[kind], other)
        for kind, load in ours.loads.items()
        if kind in theirs.loads
    ]
    for what, unit, mine, baseline in (
        ("start to first answer", "s", ours.start, theirs.start),
        ("memory of all processes", "MB", ours.memory_mb, theirs.memory_mb),
    ):
        row = Row(name=f"serve {what}, {name}", ours=mine, baseline=baseline, ratio=baseline / mine, unit=unit, peak_mb=None)
        rows.append(replace(row, note=f"baseline: {other}"))
    return rows


def _pairs(sentences: Sequence[str], number: int) -> list[tuple[str, str]]:
    texts = iter(sentences)
    return list(itertools.islice(zip(texts, texts, strict=False), number))


def _stages(model: Model, folder: Path, engine: Engine, pairs: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """Milliseconds (p50) of a pair in a call of the model, and of one sent through `Batches` to a model in this process."""

    async def in_turn() -> tuple[list[float], list[float]]:
        batches = Batches(InProcess(cores(), PATIENCE, engine).start(NAME, str(folder), lambda: False), lambda: None)
        called: list[float] = []
        sent: list[float] = []
        for first, second in pairs:
            job = Job("similarity", [first], [second])
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
    first = next(iter(server.asks.values()))
    load(server, [first("A dog runs.", "An animal moves.")], 1)
    start = time.perf_counter() - server.started_at
    loads: dict[str, Load] = {}
    for kind, ask in server.asks.items():
        load(server, [ask(next(texts), next(texts)) for _ in range(max(clients))], max(clients))
        for count in clients if kind != "many" else (1,):
            size, number = (BATCH, max(1, requests // 16)) if kind == "many" else (2, requests)
            asked = [ask(*itertools.islice(texts, size)) for _ in range(number)]
            words = f"{kind}, a pair a request, {count} at once" if size == 2 else f"encode, {size} sentences a request"
            loads[words] = load(server, asked, count)
    tree = (server.process, *server.process.children(recursive=True))
    return Measured(loads, start, sum(one.memory_full_info().pss for one in tree) / 1e6)


def _row(name: str, ours: Load, theirs: Load, other: str) -> Row:
    return Row(
        name=name,
        ours=ours.rate,
        baseline=theirs.rate,
        ratio=ours.rate / theirs.rate,
        unit="requests/s",
        peak_mb=ours.peak_mb,
        baseline_peak_mb=theirs.peak_mb,
        note=f"p50 {ours.p50:.3g} ms, p99 {ours.p99:.3g} ms; baseline: {other}, p50 {theirs.p50:.3g} ms, "
        f"p99 {theirs.p99:.3g} ms; peak of each server's largest process",
    )


def load(server: Server, requests: Sequence[tuple[str, bytes]], clients: int) -> Load:
    """Send all requests. A client uses one connection and sends its next request once it has the last answer."""

    def client(own: Sequence[tuple[str, bytes]]) -> list[float]:
        seconds: list[float] = []
        # Not http.client, which takes as much of the cores as a server does for a small request.
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for path, body in own:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
                start = time.perf_counter()
                connection.sendall(f"{head}\r\n\r\n".encode() + body)
                answer = b""
                while (size := _size(answer)) is None or len(answer) < size:
                    if not (part := connection.recv(1 << 16)):
                        raise RuntimeError(f"the server ends a connection after {answer[:500]!r}")
                    answer += part
                seconds.append(time.perf_counter() - start)
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"the server answers {answer[:500]!r}")
        return seconds

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = sorted(itertools.chain.from_iterable(pool.map(client, [requests[n::clients] for n in range(clients)])))
    rate = len(requests) / (time.perf_counter() - start)
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    peak = max(resident("VmHWM", process.pid) for process in (server.process, *server.process.children(recursive=True)))
    return Load(rate, 1000 * statistics.median(seconds), 1000 * p99, peak / 1e6)


def _size(answer: bytes) -> int | None:
    """Bytes of a whole answer; None if its headers are not complete."""
    head, end, _ = answer.partition(b"\r\n\r\n")
    return len(head) + 4 + int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]) if end else None


def registered(folder: Path, data: Corpus, sentences: Sequence[str]) -> str:
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

    asks: dict[str, Ask] = {
        "similarity": lambda a, b: body("similarity", [{"a": a, "b": b}]),
        "many": lambda *sentences: body("encode", [{"sentence": sentence} for sentence in sentences]),
    }
    command = ["mlflow", "models", "serve", "-m", f"models:/{NAME}@champion", "--env-manager", "local"]
    return _server(command, "/health", folder, asks, MLFLOW_TRACKING_URI=uri)


def ours_server(folder: Path, uri: str, options: Sequence[str]) -> AbstractContextManager[Server]:
    """`gausscse serve` with these options."""
    asks: dict[str, Ask] = {
        "similarity": lambda a, b: ("/similarity", json.dumps({"a": [a], "b": [b]}).encode()),
        "means": lambda *two: ("/v1/embeddings", json.dumps({"input": two, "model": NAME}).encode()),
        "many": lambda *sentences: ("/encode", json.dumps({"sentences": sentences}).encode()),
    }
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--name", NAME, *options]
    return _server(command, "/ready", folder, asks, MLFLOW_TRACKING_URI=uri)


def _floor(folder: Path) -> AbstractContextManager[Server]:
    export_onnx(GaussianEncoder.from_pretrained(folder / "encoder"), folder / "onnx")
    asks: dict[str, Ask] = {"similarity": lambda a, b: ("/similarity", json.dumps({"a": [a], "b": [b]}).encode())}
    return _server([sys.executable, "-m", "bench.floor", str(folder / "onnx")], "/ready", folder, asks, PYTHONPATH=str(ROOT))


def _infinity(folder: Path) -> AbstractContextManager[Server]:
    """The backbone and the mean of its tokens, without the heads, as sentence-transformers 3 reads them, which infinity has."""
    encoder, out = GaussianEncoder.from_pretrained(folder / "encoder"), folder / "infinity"
    encoder.backbone.save_pretrained(out)  # type: ignore[union-attr, operator]
    encoder.tokenizer.save_pretrained(out)
    pooling = {"word_embedding_dimension": encoder.mean_head.in_features, "pooling_mode_mean_tokens": True}
    (out / "1_Pooling").mkdir()
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    write_json(out / "1_Pooling/config.json", pooling)
    (out / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    write_json(out / "sentence_bert_config.json", {"max_seq_length": encoder.longest})
    asks: dict[str, Ask] = {"means": lambda *two: ("/embeddings", json.dumps({"input": two, "model": NAME}).encode())}
    command = [os.environ[INFINITY], "v2", "--model-id", str(out), "--served-model-name", NAME, "--device", "cpu"]
    return _server([*command, "--no-model-warmup"], "/health", folder, asks, DO_NOT_TRACK="1", HF_HUB_OFFLINE="1")


@contextmanager
def _server(command: Sequence[str], probe: str, folder: Path, asks: Mapping[str, Ask], **variables: str) -> Iterator[Server]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env, start = {**os.environ, "PATH": path, **variables}, time.perf_counter()
    with started([*command, "--port"], probe, folder / "server.log", PATIENCE, env) as (port, process):
        yield Server(port, process, asks, started_at=start)
