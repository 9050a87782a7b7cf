"""A run follows a cluster that loses hosts, gets them back, and is warned that one will go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline.trials.trial import OUTCOME
from pipeline.utils.atomic_io import read_json
from tests.cluster.faults import Driver, Run, note, nothing, workers, writer
from tests.cluster.hosts import Cluster, Host
from tests.cluster.lab import BIN, Project
from tests.copies import ROOT
from tests.gates import stopped, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

EVERY = 20


@pytest.fixture(scope="module")
def base(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = project.elsewhere(tmp_path_factory.mktemp("elastic"))
    made.set("params.yaml", {"train.eval_every": EVERY, "train.epochs": 30})
    made.set("execution.yaml", {"cluster.min_workers": 1, "cluster.max_failures": 1, "cluster.placement_timeout_s": 10.0})
    return made


@pytest.fixture(scope="module")
def without_dropout(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Key `model` of an order: dropout draws other numbers on other workers; without it, only the order of sums differs."""
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path_factory.mktemp("model") / "backbone"))
    config = json.loads((backbone / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (backbone / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"backbone": str(backbone)}


NODES = """
import ray, sys
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(*(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] in sys.argv[2:]))
"""


def nodes(cluster: Cluster, cwd: Path, *addresses: str) -> list[str]:
    """Ids of the living nodes with these addresses."""
    said = cluster.head.run(sys.executable, "-c", NODES, cluster.gcs, *addresses, cwd=cwd, env=cluster.env)
    return said.splitlines()[-1].split()


def end_pod(host: Host, cluster: Cluster, log: Path) -> subprocess.Popen[bytes]:
    """Start what Kubernetes runs in a worker's container before it ends the pod, with the address that KubeRay sets there."""
    manifest = yaml.safe_load((ROOT / "deploy/kuberay/base/cluster.yaml").read_text(encoding="utf-8"))
    (container,) = manifest["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    # Ray looks for its node among the processes that it sees. A pod sees its own; a host sees all, so the others are hidden.
    others = [raylet.pid for other in cluster.hosts.values() if other is not host for raylet in other.named("raylet/raylet")]
    hidden = "".join(f"mount -t tmpfs none /proc/{pid} && " for pid in others)
    return host.start(
        *("unshare", "--mount", "sh", "-c", f'{hidden}exec "$@"', "sh", *command),
        cwd=log.parent,
        env={**cluster.env, "RAY_ADDRESS": cluster.gcs},
        log=log,
    )


def test_a_run_shrinks_grows_again_and_leaves_a_host_in_time(
    driver: Driver, without_dropout: dict[str, str], tmp_path: Path
) -> None:
    base, ray_cluster, hosts = driver.project, driver.cluster, driver.cluster.hosts
    whole, run = (Run(base.elsewhere(tmp_path / name)) for name in ("whole", "elastic"))
    assert whole.train(driver, nothing, model=without_dropout) is None
    total = whole.outcome()["total_steps"]
    log = base.root.parent / "driver.log"
    before = log.stat().st_size
    reached: list[int] = []

    def says(words: str) -> bool:
        return words in log.read_bytes()[before:].decode(errors="replace")

    def disturb() -> None:
        run.wait_for_step(total // 8)
        run.disturbed("a host lost, min_workers: 1", hosts, hosts["two"].kill)
        assert len(workers(hosts)) == 1
        # Held meanwhile, or a fast machine comes to the end of the run.
        with stopped(workers(hosts)):
            ray_cluster.start("two", 1)
        # Time to see the room, then time for it to last.
        time.sleep(5)
        with stopped(workers(hosts)):
            time.sleep(10)
        wait_for(lambda: says("there is room for 1 more"), 120, "the run takes up the host that is back")
        reached.append(run.steps())
        wait_for(lambda: len(workers(hosts)) == 2 and run.steps() > reached[0] + EVERY, 120, "two workers train again")
        hook = end_pod(hosts["two"], ray_cluster, tmp_path / "hook.log")
        wait_for(lambda: says(f"{hosts['two'].address} is about to leave the cluster"), 60, "the run heeds the warning")
        assert hook.poll() is None
        reached.append(run.steps())
        hosts["two"].kill()
        hook.wait()
        wait_for(lambda: run.steps() > reached[1] + EVERY or run.ended(), 120, "one worker trains on")

    try:
        assert run.train(driver, disturb, model=without_dropout) is None
    finally:
        ray_cluster.start("two", 1)
    note("the cluster shrinks, grows again, and a host is drained", run)
    # Only the host that was lost without a warning cost steps: no step after that was reported twice.
    steps = [record["step"] for record in run.records() if record["step"] >= reached[0]]
    assert len(steps) == len(set(steps))
    # Two hosts, one, two, one; that is what a price is of.
    sizes = [len({*record["machines"]}) for record in run.records()]
    assert [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before] == [2, 1, 2, 1]
    ours, theirs = run.outcome(), whole.outcome()
    assert run.folder is not None
    assert read_json(run.folder / OUTCOME)["timing"]["workers"] == 1
    assert ours["total_steps"] == total
    for mine, other in zip(ours["history"], theirs["history"], strict=True):
        assert mine["step"] == other["step"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert ours["best_score"] == pytest.approx(theirs["best_score"], abs=0.1)


def test_a_grid_runs_as_many_trials_at_a_time_as_fit_once_a_host_joins(
    base: Project, ray_cluster: Cluster, tmp_path: Path
) -> None:
    hosts, run = ray_cluster.hosts, base.elsewhere(tmp_path)
    run.set("params.yaml", {"train.epochs": 4, "tune.learning_rates": [1e-3, 2e-3, 3e-3]})
    # A worker that the test holds does not hang.
    run.set("execution.yaml", {"cluster.workers": 1, "cluster.min_workers": None, "cluster.hang_timeout_s": 600.0})
    log = tmp_path / "said.log"

    def says(words: str) -> bool:
        return words in log.read_text(encoding="utf-8")

    def training() -> list[int]:
        return [pid for trial in run.storage.glob("trials/*") if (pid := writer(trial)) is not None]

    repro = None
    hosts["two"].kill()
    try:
        wait_for(lambda: len(nodes(ray_cluster, tmp_path, hosts["two"].address)) == 0, 120, "the host is gone", every=1)
        repro = run.laptop.start(str(BIN / "dvc"), "repro", "tune", cwd=run.root, env=run.env, log=log)
        wait_for(lambda: len(training()) == 1, 200, "the first trial trains", every=0.05)
        first = training()
        # Held, so that the second trial can begin only next to it.
        with stopped(first):
            wait_for(lambda: says("3 trials of 1 worker on cpu, 1 at a time"), 60, "the job's log arrives")
            ray_cluster.start("two", 1)
            wait_for(lambda: len(training()) == 2, 120, "the second trial trains on the host that has joined")
            assert first[0] in training()
            assert workers({"two": hosts["two"]})
        assert repro.wait(400) == 0, log.read_text(encoding="utf-8")
    finally:
        if repro is not None and repro.poll() is None:
            # Its job would keep its places.
            repro.kill()
            hosts["head"].end("-m stages.tune")
        if not hosts["two"].named("raylet/raylet"):
            ray_cluster.start("two", 1)
    assert says("the cluster has room for 2 workers: 2 trials at a time")
    assert len(list(run.storage.glob(f"trials/*/{OUTCOME}"))) == 3
