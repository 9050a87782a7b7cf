"""Everything on the cluster that can die, at three seeded points each; what the run comes out as is what it would have been.

docs/reliability.md has the table: the rows there are these tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.execution import TrackingParams
from pipeline.files import read_json
from pipeline.tracking import PARENT_TAG, open_tracker
from pipeline.trial import LATEST, OUTCOME, PREVIOUS
from tests.cluster.faults import Run, note, points, send, workers, writer
from tests.cluster.hosts import Cluster, Host, wait_for
from tests.cluster.lab import MlflowServer, Project

pytestmark = pytest.mark.cluster

EPOCHS = 16
HANG = 10.0


@pytest.fixture(scope="module")
def base(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A grid of one trial of some hundred steps, with a checkpoint every twenty."""
    made = project.elsewhere(tmp_path_factory.mktemp("faults"))
    made.set("params.yaml", {"train.epochs": EPOCHS, "train.eval_every": 20})
    made.set("execution.yaml", {"cluster.max_failures": 4, "cluster.hang_timeout_s": HANG, "cluster.placement_timeout_s": 60.0})
    return made


@pytest.fixture(scope="module")
def undisturbed(base: Project, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(base.elsewhere(tmp_path_factory.mktemp("undisturbed")))
    run.repro()
    note("none", run)
    return run


@pytest.fixture
def run(base: Project, tmp_path: Path) -> Run:
    return Run(base.elsewhere(tmp_path))


def disturb_at_points(run: Run, undisturbed: Run, fault: str, hosts: Mapping[str, Host], how: Callable[[int], None]) -> None:
    """Run it with the fault at three points, and compare with the run that was left alone."""
    last = undisturbed.results()[0]["total_steps"]

    def body() -> None:
        for number, step in enumerate(points(fault, last)):
            run.wait_for_step(step)
            run.disturbed(hosts, lambda number=number: how(number))

    run.repro(body)
    note(fault, run)
    assert run.results() == undisturbed.results()


def test_nothing_happens(undisturbed: Run) -> None:
    outcome = undisturbed.results()[0]
    assert outcome["history"][-1]["step"] == outcome["total_steps"] > 150


def test_a_worker_is_killed(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    where = ("one", "two", "one")
    disturb_at_points(
        run, undisturbed, "SIGKILL of a worker", hosts, lambda n: send(hosts[where[n]].named("RayTrainWorker"), signal.SIGKILL)
    )
    assert [cost.lost_steps <= 30 for cost in run.costs] == [True] * 3


def test_a_worker_hangs(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    where = ("two", "one", "two")
    disturb_at_points(
        run, undisturbed, "SIGSTOP of a worker", hosts, lambda n: send(hosts[where[n]].named("RayTrainWorker"), signal.SIGSTOP)
    )
    assert all(cost.detected_s is not None and cost.detected_s < HANG + 40 for cost in run.costs)


def test_a_raylet_is_killed_and_its_host_comes_back(
    run: Run, undisturbed: Run, hosts: Mapping[str, Host], ray_cluster: Cluster
) -> None:
    def fall_and_rise(number: int) -> None:
        name = ("one", "two", "one")[number]
        send(hosts[name].named("raylet/raylet"), signal.SIGKILL)
        wait_for(lambda: not hosts[name].named("RayTrainWorker"), 60, "the raylet's workers die with it")
        ray_cluster.start(name, 1)

    disturb_at_points(run, undisturbed, "SIGKILL of a raylet", hosts, fall_and_rise)


def test_the_network_is_cut_for_20_seconds(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    def cut(number: int) -> None:
        host = hosts[("one", "two", "one")[number]]
        host.cable(plugged=False)
        time.sleep(20)
        host.cable(plugged=True)

    disturb_at_points(run, undisturbed, "network cut for 20 s", hosts, cut)


def test_a_worker_is_killed_while_it_writes_a_checkpoint(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    def kill_the_writer(_: int) -> None:
        assert run.folder is not None
        folder = run.folder
        wait_for(lambda: bool(list(folder.glob(f".{LATEST}.*.tmp/*"))), 120, "a checkpoint is written", every=0.0002)
        process = writer(folder)
        assert process is not None
        os.kill(process, signal.SIGKILL)

    disturb_at_points(run, undisturbed, "SIGKILL during a checkpoint write", hosts, kill_the_writer)


def test_the_newest_checkpoint_is_truncated(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    def kill_and_truncate(_: int) -> None:
        assert run.folder is not None
        folder = run.folder
        for host in hosts.values():
            for process in host.named("RayTrainWorker"):
                process.send_signal(signal.SIGSTOP)
        wait_for(lambda: (folder / PREVIOUS).is_dir() and (folder / LATEST).is_dir(), 5, "there are two checkpoints")
        file = folder / LATEST / "model.safetensors"
        with file.open("r+b") as weights:
            weights.truncate(file.stat().st_size // 2)
        for host in hosts.values():
            for process in host.named("RayTrainWorker"):
                process.send_signal(signal.SIGKILL)

    disturb_at_points(run, undisturbed, "newest checkpoint truncated", hosts, kill_and_truncate)
    assert run.said.count("going on from the checkpoint before it") == 3


def test_mlflow_is_down_for_a_minute(run: Run, undisturbed: Run, hosts: Mapping[str, Host], mlflow_server: MlflowServer) -> None:
    def body() -> None:
        run.wait_for_step(points("MLflow", undisturbed.results()[0]["total_steps"])[1])
        mlflow_server.stop()
        time.sleep(60)
        mlflow_server.start()

    run.repro(body)
    note("MLflow down for 60 s", run)
    assert run.results() == undisturbed.results()
    tracker = open_tracker(TrackingParams(uri=mlflow_server.database, experiment="gausscse"), run.project.root)
    children = tracker.client.search_runs([tracker.experiment_id], order_by=["attributes.start_time DESC"])
    child = next(one for one in children if PARENT_TAG in one.data.tags)
    steps = [metric.step for metric in tracker.client.get_metric_history(child.info.run_id, "loss")]
    assert steps == [entry["step"] for entry in undisturbed.results()[0]["history"]]
    assert child.info.status == "FINISHED"


def test_without_recovery_a_killed_worker_ends_the_run(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    run.project.set("execution.yaml", {"cluster.max_failures": 0})

    def body() -> None:
        run.wait_for_step(points("off", undisturbed.results()[0]["total_steps"])[0])
        send(hosts["two"].named("RayTrainWorker"), signal.SIGKILL)

    run.repro(body, expected=2)
    note("SIGKILL of a worker, recovery off", run)
    assert "was killed by SIGKILL" in run.said
    assert "(given up after 1 attempt)" in run.said
    assert not (run.project.root / "results").exists()
    run.repro()
    assert run.results() == undisturbed.results()


def test_the_driver_of_the_job_is_killed(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    for step in points("driver", undisturbed.results()[0]["total_steps"]):

        def body(step: int = step) -> None:
            run.wait_for_step(step)
            send(hosts["head"].named("-m stages.tune"), signal.SIGKILL)

        run.repro(body, expected=2)
        assert "error: job gausscse-tune-" in run.said
        assert not (run.project.root / "results").exists()
        wait_for(lambda: not workers(hosts), 60, "its workers end with it")
    run.repro()
    note("SIGKILL of the job's driver", run)
    assert run.results() == undisturbed.results()


def test_the_job_gets_sigterm(run: Run, undisturbed: Run, hosts: Mapping[str, Host]) -> None:
    for step in points("SIGTERM", undisturbed.results()[0]["total_steps"]):
        before: list[int] = []

        def body(step: int = step, before: list[int] = before) -> None:
            run.wait_for_step(step)
            before.append(run.steps())
            (driver,) = [p for p in hosts["head"].named("-m stages.tune") if p.name().startswith("python")]
            driver.send_signal(signal.SIGTERM)

        run.repro(body, expected=2)
        assert "interrupted; finished work is kept" in run.said
        # Not the last scoring's: it was written after the signal.
        assert run.checkpoint() >= before[0]
    run.repro()
    note("SIGTERM", run)
    assert run.results() == undisturbed.results()


def test_a_host_is_lost_for_good(run: Run, undisturbed: Run, hosts: Mapping[str, Host], ray_cluster: Cluster) -> None:
    run.project.set("execution.yaml", {"cluster.placement_timeout_s": 10.0})

    def body() -> None:
        run.wait_for_step(points("lost", undisturbed.results()[0]["total_steps"])[0])
        hosts["two"].kill()

    run.repro(body, expected=2)
    assert "error: " in run.said
    assert not (run.project.root / "results").exists()
    ray_cluster.start("two", 1)
    run.repro()
    note("host lost for good", run)
    assert run.results() == undisturbed.results()


def test_the_cluster_shrinks_and_training_goes_on_with_fewer(
    base: Project, hosts: Mapping[str, Host], ray_cluster: Cluster, tiny_backbone: Path, tmp_path: Path
) -> None:
    # Dropout draws other numbers on other workers; without it, all that differs is the order in which floats are added.
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path / "backbone"))
    config = json.loads((backbone / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (backbone / "config.json").write_text(json.dumps(config), encoding="utf-8")
    runs = [Run(base.elsewhere(tmp_path / name)) for name in ("whole", "shrinks")]
    for one in runs:
        one.project.set("params.yaml", {"model.backbone": str(backbone), "train.epochs": 8})
        one.project.set("execution.yaml", {"cluster.min_workers": 1, "cluster.placement_timeout_s": 10.0})
    whole, shrinks = runs
    whole.repro()
    last = whole.results()[0]["total_steps"]

    def body() -> None:
        shrinks.wait_for_step(points("shrinks", last, 1)[0])
        shrinks.disturbed(hosts, hosts["two"].kill)

    try:
        shrinks.repro(body)
    finally:
        ray_cluster.start("two", 1)
    note("the cluster shrinks", shrinks)
    ours, theirs = (one.results()[0] for one in (shrinks, whole))
    assert shrinks.folder is not None
    assert read_json(shrinks.folder / OUTCOME)["timing"]["workers"] == 1
    assert ours["total_steps"] == theirs["total_steps"]
    for one, other in zip(ours["history"], theirs["history"], strict=True):
        assert one["step"] == other["step"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert ours["best_dev_pr_auc"] == pytest.approx(theirs["best_dev_pr_auc"], abs=0.1)


def test_the_storage_is_full(base: Project, undisturbed: Run, hosts: Mapping[str, Host], tight: Path, tmp_path: Path) -> None:
    project = base.elsewhere(tmp_path)
    project.set("execution.yaml", {"cluster.storage": str(tight / "storage")})
    run = Run(replace(project, storage=tight / "storage"))
    filler = tight / "filler"

    def body() -> None:
        run.wait_for_step(points("full", undisturbed.results()[0]["total_steps"])[1])
        with filler.open("wb") as out:
            try:
                while out.write(b"0" * 65536):
                    out.flush()
            except OSError:
                # Full.
                return

    run.repro(body, expected=2)
    assert "o space left on device" in run.said
    assert not (run.project.root / "results").exists()
    filler.unlink()
    run.repro()
    note("storage full", run)
    assert run.results() == undisturbed.results()
    shutil.rmtree(tight / "storage")
