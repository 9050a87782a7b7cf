"""`gausscse serve` on a standing cluster: its replicas run on the nodes, also after a promotion, and end with it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Cluster, Host
from tests.copies import copy_project
from tests.gates import wait_for
from tests.serving.server import Registry
from tests.stages.running import set_keys

pytestmark = pytest.mark.cluster
PORT, TOKEN = 8123, "a-token-of-more-than-16"
SENTENCES = ["A dog runs.", "Nobody sings."]


def test_replicas_run_on_the_nodes_and_a_promotion_replaces_them(
    ray_cluster: Cluster, hosts: Mapping[str, Host], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    registry = Registry.made(copy_project(tmp_path / "project"), tiny_backbone, "on-a-cluster")
    keys = {"cluster.address": ray_cluster.gcs, "cluster.workers": 1, "cluster.storage": str(tmp_path / "storage")}
    # Less than the test waits below, so that its log has the reason.
    set_keys(registry.root, {**keys, "cluster.placement_timeout_s": 120.0}, "execution.yaml")
    registry.add(1)
    head, laptop, log = hosts["head"], hosts["laptop"], tmp_path / "serve.log"
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--name", registry.name]
    server = head.start(
        *(*command, "--host", head.address, "--port", str(PORT)),
        cwd=registry.root,
        env={**ray_cluster.env, "MLFLOW_TRACKING_URI": registry.tracker.uri, "GAUSSCSE_SERVE_TOKEN": TOKEN},
        log=log,
    )

    def encoded() -> dict[str, Any]:
        asked = ("--header", f"Authorization: Bearer {TOKEN}", "--json", json.dumps({"sentences": SENTENCES}))
        where = f"http://{head.address}:{PORT}/encode"
        said = laptop.attempt("curl", "--silent", "--max-time", "60", *asked, where, cwd=tmp_path).stdout
        return json.loads(said) if said.startswith("{") else {}

    def answers(number: int) -> bool:
        assert server.poll() is None, log.read_text(encoding="utf-8")
        return encoded().get("model") == f"{registry.name}/{number}"

    def replicas() -> list[str]:
        return [name for name, host in hosts.items() for _ in host.named("ray::ServeReplica")]

    try:
        wait_for(lambda: answers(1), 200, "the first version answers", every=0.5)
        # The head has no cores for them.
        assert replicas() in (["one"], ["two"])
        registry.promote(registry.add(2))
        wait_for(lambda: answers(2), 200, "the second version answers", every=0.5)
        expected = registry.encoder(2).encode(SENTENCES)
        answer = encoded()
        for row, mean in enumerate(expected.mean.tolist()):
            assert answer["mean"][row] == pytest.approx(mean, rel=1e-3, abs=1e-5)
        wait_for(lambda: len(replicas()) == 1, 60, "the first version's replica ends")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM, log.read_text(encoding="utf-8")
        wait_for(lambda: not replicas(), 60, "the replicas end with the server")
    finally:
        server.kill()
        server.wait()
        # Those of a server that was killed would keep their places.
        for host in hosts.values():
            host.end("ray::ServeReplica")
            host.end("ray::ServeController")
