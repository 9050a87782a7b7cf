"""`mlflow models serve` on this machine, with clients on the same cores."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.corpus import Corpus, corpus
from bench.measure import Row
from pipeline.config.execution import TrackingParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.threshold import Calibration
from pipeline.registry.versions import add_version
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import open_tracker

NAME, BATCH, PATIENCE = "bench", 64, 120.0


def run(quick: bool) -> list[Row]:
    """One pair per request from 1, 4 and 16 clients, and many sentences per request from one client."""
    data = corpus()
    requests, clients = (8, (1, 2)) if quick else (400, (1, 4, 16))
    pairs = [_body("entailment", [{"premise": p, "hypothesis": h}]) for p, h, _ in data.texts[:requests]]
    sentences = list(itertools.chain.from_iterable(data.texts))
    lists = [
        _body("encode", [{"sentence": one} for one in sentences[start : start + BATCH]])
        for start in range(0, requests // 8 * BATCH, BATCH)
    ]
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder), data) as (port, server):
        _load(port, pairs[: max(clients)], max(clients))
        rows = [_row(f"serve entailment, a pair a request, {count} at once", port, server, pairs, count, 1) for count in clients]
        return [*rows, _row(f"serve encode, {BATCH} sentences a request, 1 at once", port, server, lists, 1, BATCH)]


def _row(name: str, port: int, server: psutil.Process, bodies: Sequence[bytes], clients: int, each: int) -> Row:
    start = time.perf_counter()
    seconds = sorted(_load(port, bodies, clients))
    rate = len(bodies) / (time.perf_counter() - start)
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return Row(
        name=name,
        ours=rate,
        baseline=None,
        ratio=None,
        unit="requests/s",
        peak_mb=max(_peak_mb(process) for process in (server, *server.children(recursive=True))),
        note=f"p50 {1000 * statistics.median(seconds):.3g} ms, p99 {1000 * p99:.3g} ms, {len(bodies)} requests"
        + (f", {each * rate:,.0f} sentences/s" if each > 1 else "")
        + "; peak of the server's largest process",
    )


def _body(operation: str, rows: list[dict[str, Any]]) -> bytes:
    return json.dumps({"dataframe_records": rows, "params": {"operation": operation}}).encode()


def _load(port: int, bodies: Sequence[bytes], clients: int) -> list[float]:
    """Seconds of each request. A client uses one connection and sends its next request once it has the last answer."""

    def client(own: Sequence[bytes]) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        seconds: list[float] = []
        for body in own:
            start = time.perf_counter()
            connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != 200:
                raise RuntimeError(f"the server answers {answer.status}: {text[:500]!r}")
        connection.close()
        return seconds

    with ThreadPoolExecutor(clients) as pool:
        return list(itertools.chain.from_iterable(pool.map(client, [bodies[n::clients] for n in range(clients)])))


@contextmanager
def _served(folder: Path, data: Corpus) -> Iterator[tuple[int, psutil.Process]]:
    """Port and process of a server for the packaged encoder, registered as champion."""
    encoder = GaussianEncoder.from_backbone(data.params.model, 1)
    encoder.calibration = Calibration(threshold=0.5, entailment_if=">=", swept_on="dev", pairs="0" * 64, accuracy=50.0)
    encoder.save_pretrained(folder / "encoder")
    tracker = open_tracker(TrackingParams(uri=f"sqlite:///{folder}/mlflow.db", experiment=NAME), folder)
    version = add_version(tracker, NAME, folder / "encoder", pipeline_run(tracker, "0" * 64, {}, {}), {})
    tracker.client.set_registered_model_alias(NAME, "champion", version.version)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    command = ["mlflow", "models", "serve", "-m", f"models:/{NAME}@champion", "--env-manager", "local", "--port", str(port)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "MLFLOW_TRACKING_URI": tracker.uri, "PATH": path}, stdout=log, stderr=log
        )
    server = psutil.Process(process.pid)
    try:
        _wait(port, folder / "server.log")
        yield port, server
    finally:
        for child in [*server.children(recursive=True), server]:
            child.kill()
        process.wait()


def _wait(port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"the server does not answer: {log.read_text(encoding='utf-8')[-2000:]}")


def _peak_mb(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))
