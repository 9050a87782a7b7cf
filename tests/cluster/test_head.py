"""The head dies in the middle of a trial; what it knows is in Redis, as in deploy/kuberay.

Environment and options are those that KubeRay gives a head with `gcsFaultToleranceOptions`. Redis starts by the command of
deploy/kuberay/base/redis.yaml. The new head has the address of the old one (in Kubernetes a service does that) and none of its
files.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from tests.cluster.faults import Run, note, send, workers
from tests.cluster.hosts import Cluster, Host, needed, network
from tests.cluster.lab import MlflowServer, Project
from tests.copies import ROOT
from tests.gates import stopped, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

EVERY = 20
REDIS = ROOT / "deploy/kuberay/base/redis.yaml"


@dataclass
class Lasting:
    """A Ray cluster whose head keeps what it knows in Redis."""

    cluster: Cluster
    folder: Path
    password: str
    head: subprocess.Popen[bytes] | None = None

    def start_head(self) -> None:
        """As the pod of a head does it; ends with any of its processes."""
        host = self.cluster.head
        env = {
            "RAY_REDIS_ADDRESS": f"{self.cluster.hosts['redis'].address}:6379",
            "REDIS_PASSWORD": self.password,
            "RAY_external_storage_namespace": "of-this-cluster",
        }
        line = " ".join([*self.cluster.command("head", 0), "--block", '--redis-password="$REDIS_PASSWORD"'])
        self.head = host.start(
            "bash", "-c", f"exec {line}", cwd=self.folder, env={**self.cluster.env, **env}, log=self.folder / "head.log"
        )
        wait_for(self.answers, 120, f"the head answers: {self.folder / 'head.log'}", every=0.5)

    def answers(self) -> bool:
        """Whether jobs can be sent."""
        asked = ("wget", "--quiet", "--output-document=-", "--timeout=2", f"{self.cluster.address}/api/gcs_healthz")
        return self.cluster.head.attempt(*asked, cwd=self.folder).returncode == 0

    def lose_head(self) -> None:
        """The process that knows the cluster dies; the rest of the head follows, files and all."""
        assert self.head is not None
        send(self.cluster.head.named("gcs_server"), signal.SIGKILL)
        assert self.head.wait(60) == 1
        self.cluster.head.kill()
        self.cluster.head.run("sh", "-c", "rm -rf /tmp/ray/* /dev/shm/*", cwd=self.folder)

    def raylets(self) -> set[int]:
        """The processes that are the other nodes."""
        return {one.pid for name in ("one", "two") for one in self.cluster.hosts[name].named("raylet/raylet")}


@pytest.fixture(scope="module")
def machines(hosts: Mapping[str, Host]) -> Iterator[Mapping[str, Host]]:
    """Hosts like the cluster's of other tests, and one for Redis."""
    needed("redis-server", "wget", variable="GAUSSCSE_REQUIRE_REDIS")
    with network(["head", "one", "two", "laptop", "redis"], hosts["laptop"].env) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(machines: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    folder = tmp_path_factory.mktemp("lasting")
    made = Lasting(Cluster(machines, "head", folder), folder, secrets.token_hex(32))
    (stateful,) = (one for one in yaml.safe_load_all(REDIS.read_text(encoding="utf-8")) if one["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    # Redis in an image listens to all addresses; Debian's does not.
    *shell, script = container["command"]
    script = script.replace("dir /data\n", f"dir {folder}\nbind 0.0.0.0\n")
    assert str(folder) in script
    redis = machines["redis"].start(*shell, script, cwd=folder, env={"REDIS_PASSWORD": made.password}, log=folder / "redis.log")
    wait_for(lambda: "eady to accept connections" in (folder / "redis.log").read_text(encoding="utf-8"), 30, "Redis is up")
    made.start_head()
    for name in ("one", "two"):
        made.cluster.start(name, 1, RAY_gcs_rpc_server_reconnect_timeout_s="600")
    yield made
    redis.kill()
    redis.wait()


@pytest.fixture(scope="module")
def base(
    project: Project, lasting: Lasting, machines: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """A grid of one trial of some 260 steps, on the cluster whose head lasts."""
    server = MlflowServer(machines["laptop"], tmp_path_factory.mktemp("mlflow"))
    server.start()
    made = replace(
        project.elsewhere(tmp_path_factory.mktemp("base")),
        laptop=machines["laptop"],
        address=lasting.cluster.address,
        env=lasting.cluster.env,
    )
    made.set("params.yaml", {"train.epochs": 10, "train.eval_every": EVERY})
    made.set("execution.yaml", {"cluster.address": made.address, "tracking.uri": server.uri})
    yield made
    server.stop()


def test_a_head_that_was_lost_finds_its_nodes_and_the_next_repro_goes_on(
    base: Project, lasting: Lasting, machines: Mapping[str, Host], tmp_path: Path
) -> None:
    undisturbed = Run(base.elsewhere(tmp_path / "undisturbed"))
    undisturbed.repro()
    run = Run(base.elsewhere(tmp_path / "run"))
    nodes = lasting.raylets()
    assert len(nodes) == 2
    reached: list[int] = []
    times: dict[str, float] = {}

    def lose() -> None:
        run.wait_for_step(undisturbed.steps() // 2)
        reached.append(run.steps())
        began = time.monotonic()
        # Workers go on without a head; on a slow machine they could come to the end of the run.
        with stopped(workers(machines)):
            lasting.lose_head()
            times["head gone"] = time.monotonic() - began
            lasting.start_head()
            times["head back"] = time.monotonic() - began
        wait_for(lambda: not workers(machines), 120, "the run's workers end", every=0.1)
        times["workers gone"] = time.monotonic() - began

    began = time.monotonic()
    run.repro(lose, expected=2)
    times["repro ended"] = time.monotonic() - began
    # The nodes have waited.
    assert lasting.raylets() == nodes
    count, checkpoint = len(run.records()), run.checkpoint()
    assert checkpoint >= reached[0] - 2 * EVERY > 0
    run.repro()
    first = run.records()[count]["step"]
    note("head lost", run, times=times, reached=reached[0], checkpoint=checkpoint, first=first)
    # It goes on from the checkpoint, and nothing differs in the end.
    assert checkpoint < first <= checkpoint + EVERY
    assert run.results() == undisturbed.results()
