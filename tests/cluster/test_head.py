"""The head's state is in Redis: its server dies and starts again while a run goes on; the head loses power and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gates import wait_for

from tests.cluster.conftest import hosts_can_be_made
from tests.cluster.faults import Driver, Run, note, send, workers
from tests.cluster.hosts import Cluster, Host, network
from tests.cluster.lab import MlflowServer, Project

pytestmark = pytest.mark.cluster

EVERY, REDIS = 20, 6380


@dataclass(frozen=True)
class Setup:
    """A cluster of its own whose head keeps its state in a Redis on another host."""

    cluster: Cluster
    project: Project


@pytest.fixture(scope="module")
def setup(hosts: Mapping[str, Host], project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    hosts_can_be_made()
    if shutil.which("redis-server") is None:
        if os.environ.get("GAUSSCSE_REQUIRE_HOSTS"):
            pytest.fail("GAUSSCSE_REQUIRE_HOSTS is set, but there is no redis-server (Debian's redis-server)")
        pytest.skip("there is no redis-server here (Debian's redis-server)")
    folder = tmp_path_factory.mktemp("head")
    with network(["head", "one", "two", "laptop"], hosts["head"].env, subnet="10.213.8") as own:
        laptop = own["laptop"]
        options = ["--bind", laptop.address, "--port", str(REDIS), "--protected-mode", "no", "--save", "", "--appendonly", "no"]
        laptop.start("redis-server", *options, cwd=folder, log=folder / "redis.log")
        ping = ["redis-cli", "-h", laptop.address, "-p", str(REDIS), "ping"]
        wait_for(lambda: "PONG" in laptop.attempt(*ping, cwd=folder).stdout, 30, "Redis answers", every=0.2)
        cluster = Cluster(own, "head", folder)
        own["head"].env["RAY_REDIS_ADDRESS"] = f"{laptop.address}:{REDIS}"
        for name in ("head", "one", "two"):
            cluster.start(name, int(name != "head"))
        del own["head"].env["RAY_REDIS_ADDRESS"]
        mlflow_server = MlflowServer(laptop, folder)
        mlflow_server.start()
        made = replace(project, laptop=laptop, address=cluster.address, env=cluster.env).elsewhere(folder / "project")
        made.set("params.yaml", {"train.epochs": 6, "train.eval_every": EVERY})
        made.set(
            "execution.yaml",
            {
                "cluster.address": cluster.address,
                "tracking.uri": mlflow_server.uri,
                "cluster.max_failures": 3,
                "cluster.placement_timeout_s": 60.0,
            },
        )
        yield Setup(cluster, made)


def test_a_run_outlives_the_head_s_server_and_is_taken_up_after_the_head_s_power_failure(setup: Setup, tmp_path: Path) -> None:
    cluster, head = setup.cluster, setup.cluster.head
    driver = Driver(setup.project, cluster)
    undisturbed, restarted, lost = (Run(setup.project.elsewhere(tmp_path / name)) for name in ("none", "server", "power"))
    redis = {"RAY_REDIS_ADDRESS": f"{cluster.hosts['laptop'].address}:{REDIS}"}
    assert undisturbed.train(driver) is None
    some = undisturbed.outcome()["total_steps"] // 3

    def server_dies() -> None:
        restarted.wait_for_step(some)
        (server,) = head.named("gcs_server")
        command, environment, folder = server.cmdline(), server.environ(), Path(server.cwd())
        trained_by, step = workers(cluster.hosts), restarted.steps()
        send([server], signal.SIGKILL)
        wait_for(lambda: restarted.steps() >= step + 20, 120, "training goes on without the server")
        with (tmp_path / "server.log").open("ab") as log:
            subprocess.Popen(
                [*head.command, f"--wd={folder}", *command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(restarted.ended, 240, "the run ends")
        assert trained_by

    assert restarted.train(driver, server_dies) is None
    note("the head's server dies, state in Redis", restarted)
    assert restarted.results() == undisturbed.results()
    # No worker was started again.
    assert "attempt" not in restarted.said

    def power_fails() -> None:
        lost.wait_for_step(some)
        head.kill()

    with pytest.raises(AssertionError):
        lost.train(driver, power_fails)
    assert not lost.ended()
    kept = lost.checkpoint()
    assert kept >= EVERY
    head.env |= redis
    cluster.start("head", 0)
    # The other hosts were not touched: they join the head that is back.
    again = Driver(setup.project, cluster)
    assert lost.train(again) is None
    note("the head loses power, state in Redis", lost)
    assert lost.results() == undisturbed.results()
    assert f"step {kept}" in lost.said or lost.records()[0]["step"] <= kept
    again.close()
