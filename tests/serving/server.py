"""`gausscse serve` as a process, the registry it follows, and a client."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_execution, load_params
from pipeline.inference.bulk_encode import encode_part
from pipeline.inference.bulk_plan import begin, finish, planned
from pipeline.models.canaries import record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, dimensions, encoder_digest, weights_digest
from pipeline.registry import champions
from pipeline.registry.loading import encoder_folder, load
from pipeline.registry.version_scorer import VersionScorer
from pipeline.registry.versions import WEIGHTS_TAG, add_version
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import Tracker, open_tracker
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import SUMS, sha256_file, write_sums
from tests.conftest import PLAIN, ROOT
from tests.registry.servers import free_port

PATIENCE = 600.0


SENTENCES = [
    f"{who} {does}." for who in ("A dog", "An animal", "Nobody", "A child") for does in ("runs", "sleeps", "eats", "sings")
]


@dataclass(frozen=True)
class Registry:
    """A project's folder, and a registered model whose versions differ clearly."""

    root: Path
    backbone: Path
    tracker: Tracker
    name: str

    @staticmethod
    def made(root: Path, backbone: Path, name: str) -> Registry:
        """A project without data; its model has no versions yet."""
        held = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
        held["model"] |= {"backbone": str(backbone), "max_length": 32}
        (root / "params.yaml").write_text(yaml.safe_dump(held), encoding="utf-8")
        execution = yaml.safe_load((ROOT / "execution.yaml").read_text(encoding="utf-8"))
        # Busy cores need longer than by default. Less than PATIENCE, so that a test that waits for the start has its reason.
        execution["cluster"]["placement_timeout_s"] = PATIENCE / 2
        (root / "execution.yaml").write_text(yaml.safe_dump(execution), encoding="utf-8")
        return Registry(root, backbone, open_tracker(TrackingParams(uri=None, experiment="test"), root), name)

    def add(
        self,
        seed: int,
        change: Callable[[GaussianEncoder], None] | None = None,
        spoil: Callable[[Path], None] | None = None,
        sentences: Sequence[str] = SENTENCES,
    ) -> int:
        """Register an untrained encoder with canary pairs, as `register_model` does without its rule; the first is champion.

        Args:
            change: changes the encoder before its pairs are scored.
            spoil: changes its folder after that.
            sentences: of the canary pairs; without any, it has none.
        """
        encoder = GaussianEncoder.from_backbone(load_params(self.root / "params.yaml").model.encoder, seed).eval()
        with torch.no_grad():
            # Untrained, all models would give nearly the same similarities.
            encoder.variance_head.weight.normal_(std=1.0, generator=torch.Generator().manual_seed(seed))
        if change is not None:
            change(encoder)
        folder = self.root / f"made-{seed}"
        encoder.save_pretrained(folder)
        if sentences:
            canaries = record(encoder, sentences)
            assert canaries is not None
            (folder / CANARIES).write_text(to_text(canaries), encoding="utf-8")
        write_sums(folder)
        if spoil is not None:
            spoil(folder)
        tags = {"model_digest": sha256_file(folder / SUMS), WEIGHTS_TAG: weights_digest(folder)}
        run = pipeline_run(self.tracker, "a" * 64, {}, {})
        number = int(add_version(self.tracker, self.name, folder, run, tags).version)
        if number == 1:
            self.promote(number)
        return number

    def promote(self, number: int) -> None:
        """Move the alias, as `gausscse registry promote --force` does."""
        p, storage = load_params(self.root / "params.yaml"), load_execution(self.root / "execution.yaml").cluster.storage
        with TrialStore.of_project(self.root, storage) as store:
            scorer = VersionScorer(p.register_, p.evaluate, self.root, store, self.tracker.uri)
            champions.promote(self.tracker, self.name, number, scorer, by_force="a test")

    def rollback(self) -> None:
        """Move the alias back, as `gausscse registry rollback` does."""
        champions.rollback(self.tracker, self.name, "a test")

    def encode_corpus(self, number: int, table: pa.Table, folder: Path) -> str:
        """A folder with the sentences (column `sentence`; all columns are kept) as this version encodes them."""
        source, out = folder / "sentences.parquet", str(folder / "encoded")
        pq.write_table(table, source)
        encoder = self.encoder(number)
        projection = encoder.relation_head and encoder.relation_head.projection
        tokens = projection and projection.digest
        with encoder_folder(f"models:/{self.name}/{number}", self.tracker.uri) as model:
            described = encoder_digest(model), dimensions(model)
        plan = planned(str(source), "sentence", table.column_names, *described, tokens=tokens)
        begin(plan, out)
        finish(plan, out, [encode_part(encoder, str(source), plan, part, out) for part in plan.parts])
        return out

    def encoder(self, number: int) -> GaussianEncoder:
        return load(f"models:/{self.name}/{number}", self.tracker.uri)


def replicas_under(parent: psutil.Process, app: str) -> list[psutil.Process]:
    """The replicas of Ray Serve that a process has started.

    Args:
        app: a regular expression for the application's name.
    """
    running: list[psutil.Process] = []
    for child in parent.children(recursive=True):
        # It may have ended since.
        with suppress(psutil.NoSuchProcess):
            if re.match(rf"ray::ServeReplica:{app}:", "".join(child.cmdline()[:1])):
                running.append(child)
    return running


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process: psutil.Process
    log: Path
    token: str | None = None

    def ask(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON (or text) of an answer; POST if there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        own = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request("GET" if data is None else "POST", path, data, own | (headers or {}))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text.decode()

    def good(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask(path, body)
        assert status == 200, answer
        return answer

    def until(self, what: Callable[[], bool], words: str) -> float:
        """Wait until something holds; returns the seconds."""
        start = time.monotonic()
        while time.monotonic() < start + PATIENCE:
            if what():
                return time.monotonic() - start
            assert self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE, self.lines()
            time.sleep(0.1)
        raise AssertionError(f"not within {PATIENCE:g} s: {words}; {self.lines()}")

    def serves(self, number: int) -> bool:
        health = self.ask("/health")[1]
        return health["serving"] is not None and health["serving"]["version"] == number

    def lines(self) -> str:
        return self.log.read_text(encoding="utf-8")[-5000:]

    def replicas(self, number: int) -> list[psutil.Process]:
        """The processes of a version's replicas."""
        return replicas_under(self.process, rf"\w+-{number}-\d+")


@contextmanager
def serving(
    registry: Registry,
    folder: Path,
    options: Sequence[str] = (),
    *,
    token: str | None = None,
    ready: bool = True,
    end: signal.Signals = signal.SIGTERM,
    root: Path | None = None,
    program: Sequence[str] = (sys.executable, "-m", "pipeline.cli"),
) -> Iterator[Server]:
    """`gausscse serve` in the project's folder; it ends by a signal, and everything it started with it.

    Args:
        root: another folder to run it in.
        program: runs as `gausscse`.
        end: SIGINT goes to all processes of the group, as Ctrl-C in a terminal does.
    """
    port, log = free_port(), folder / "serve.log"
    command = [*program, "serve", "--name", registry.name, "--port", str(port), *options]
    env = {**os.environ, "MLFLOW_TRACKING_URI": registry.tracker.uri, "PYTHONPATH": str(ROOT)}
    if token is not None:
        env["GAUSSCSE_SERVE_TOKEN"] = f"another-token-of-16,{token}"
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=root or registry.root, env=env, stdout=out, stderr=out, start_new_session=True)
    server = Server(port, psutil.Process(process.pid), log, token)
    started: list[psutil.Process] = []

    def answers() -> bool:
        try:
            return server.ask("/ready" if ready else "/live")[0] == 200
        except OSError:
            return False

    try:
        server.until(answers, "ready")
        yield server
        started = server.process.children(recursive=True)
        if end == signal.SIGINT:
            os.killpg(process.pid, end)
        else:
            process.send_signal(end)
        assert process.wait(120) == 128 + end, server.lines()
        assert psutil.wait_procs(started, 60)[1] == []
    finally:
        for child in [*started, *(server.process.children(recursive=True) if process.poll() is None else []), process]:
            if child.poll() is None if isinstance(child, subprocess.Popen) else child.is_running():
                child.kill()
        process.wait()
