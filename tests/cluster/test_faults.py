"""Everything on the cluster that can die, at seeded points; the result must be what it would have been.

docs/reliability.md has the table: the rows there are these tests. A round has every fault from which a run goes on by itself.
After each fault the run's next report is compared with the undisturbed twin's, and at the end the trial, byte by byte. Another
round has another order and other steps. GAUSSCSE_ROUNDS says how many rounds there are (at most 3, by default 1).
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.storage.object_store import private_folder
from pipeline.tracking.mlflow_runs import PARENT_TAG
from pipeline.tracking.server import open_tracker
from tests.cluster.faults import Disk, Driver, Faults, Run, note, nothing, send, workers, writer
from tests.cluster.hosts import Host, needed
from tests.cluster.lab import ROUNDS, MlflowServer, Project
from tests.gates import wait_for

pytestmark = pytest.mark.cluster

EVERY = 20
HANG = 10.0
NOTICED_S = {"SIGKILL of a worker": 10.0, "SIGSTOP of a worker": HANG + 30.0, "SIGKILL of a raylet": 60.0, "network cut": 60.0}


@pytest.fixture(scope="module")
def base(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A grid of one trial of some 260 steps."""
    made = project.elsewhere(tmp_path_factory.mktemp("faults"))
    made.set("params.yaml", {"train.epochs": 10, "train.eval_every": EVERY})
    made.set("execution.yaml", {"cluster.max_failures": 8, "cluster.hang_timeout_s": HANG, "cluster.placement_timeout_s": 10.0})
    return made


@pytest.fixture(scope="module")
def undisturbed(base: Project, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(base.elsewhere(tmp_path_factory.mktemp("undisturbed")))
    assert run.train(driver) is None
    note("undisturbed", run)
    return run


@pytest.fixture
def run(base: Project, tmp_path: Path) -> Run:
    return Run(base.elsewhere(tmp_path))


def points(name: str, last: int, count: int) -> list[int]:
    """Steps at which faults come, apart from each other and before the end; always the same."""
    part = (last - EVERY - 40) // count
    draw = random.Random(name)
    return [EVERY + number * part + draw.randrange(part - 10) for number in range(count)]


@contextmanager
def minute_of_outage(server: MlflowServer) -> Iterator[Callable[[], None]]:
    """A function that takes MLflow's server down for a minute; it is up again after the block."""

    over = threading.Timer(60, server.start)

    def begin() -> None:
        server.stop()
        over.start()

    try:
        yield begin
    finally:
        if over.ident is not None:
            over.join()


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_a_run_goes_on_by_itself_whatever_dies(
    number: int, run: Run, undisturbed: Run, driver: Driver, mlflow_server: MlflowServer
) -> None:
    draw = random.Random(number)
    faults = Faults(run, driver.cluster, draw).in_some_order()
    steps = points(f"round {number}", undisturbed.outcome()["total_steps"], len(faults))
    losses = {entry["step"]: entry["loss"] for entry in undisturbed.outcome()["history"]}
    # While others come, MLflow is away as well.
    begins = draw.randrange(len(faults) // 2)

    def disturb() -> None:
        with minute_of_outage(mlflow_server) as begin_outage:
            for place, (step, (fault, how)) in enumerate(zip(steps, faults, strict=True)):
                run.wait_for_step(step)
                if place == begins:
                    begin_outage()
                report = run.disturbed(fault, driver.cluster.hosts, how)
                assert report is not None, f"it ended before {fault} could disturb it"
                assert report["loss"] == losses[report["step"]], fault

    # A host that comes back takes its time.
    assert run.train(driver, disturb, cluster={"placement_timeout_s": 60.0}) is None
    note(f"round {number}", run, mlflow_down_for_60_s_at=steps[begins])
    assert run.results() == undisturbed.results()
    assert run.said.count("going on from the checkpoint before it") == 1
    for cost in run.costs:
        # Training may be up to EVERY steps past the checkpoint that is being written. Of a damaged one, the one before it takes
        # the place.
        assert cost.lost_steps <= EVERY * (3 if cost.fault == "newest checkpoint truncated" else 2), cost
        assert cost.detected_s is None or cost.detected_s < NOTICED_S.get(cost.fault, 30.0), cost
    tracker = open_tracker(TrackingParams(uri=mlflow_server.database, experiment="gausscse"), run.project.root)
    (child,) = tracker.client.search_runs([tracker.experiment_id], f"tags.`{PARENT_TAG}` = '{run.parent}'")
    assert [metric.step for metric in tracker.client.get_metric_history(child.info.run_id, "loss")] == list(losses)
    assert [metric.value for metric in tracker.client.get_metric_history(child.info.run_id, "loss")] == list(losses.values())
    assert child.info.status == "FINISHED"


def test_a_link_that_is_slow_and_loses_packets_changes_no_figure(run: Run, undisturbed: Run, driver: Driver) -> None:
    needed("nft")
    hosts = driver.cluster.hosts
    lost: list[int] = []
    before: set[int] = set()

    def disturb() -> None:
        run.wait_for_step(EVERY)
        before.update(workers(hosts))
        with hosts["one"].poor_link(2, "20mbit"), hosts["two"].poor_link(2, "20mbit"):
            run.wait_for_step(undisturbed.outcome()["total_steps"] - 10)
            # Nobody took a worker for dead and started it again.
            assert workers(hosts) in (before, set[int]())
            wait_for(run.ended, 120, "the run comes to its end")
            lost.extend(hosts[name].lost() for name in ("one", "two"))

    assert run.train(driver, disturb) is None
    note("a poor link", run, packets_lost=lost)
    assert min(lost) > 10
    assert run.results() == undisturbed.results()
    steps = [record["step"] for record in run.records()]
    assert len(steps) == len(set(steps))


def test_without_recovery_a_killed_worker_ends_the_run(run: Run, undisturbed: Run, driver: Driver) -> None:
    def kill() -> None:
        run.wait_for_step(points("off", undisturbed.outcome()["total_steps"], 3)[0])
        send(driver.cluster.hosts["two"].named("RayTrainWorker"), signal.SIGKILL)

    failure = run.train(driver, kill, cluster={"max_failures": 0})
    assert failure is not None
    assert "was killed (SIGKILL)" in failure
    assert failure.endswith("(given up after 1 attempt)")
    assert not run.ended()
    note("recovery off", run)


@pytest.mark.weekly
def test_what_ends_a_run_is_taken_up_by_the_next(undisturbed: Run, driver: Driver, tight: Path, tmp_path: Path) -> None:
    """One trial in a storage that has an end: a host lost for good, the storage read-only on the first worker's host, then full.

    Each once a round; the next attempt goes on with it, and the last is `dvc repro`.
    """
    hosts, project = driver.cluster.hosts, driver.project.elsewhere(tmp_path)
    project.set("execution.yaml", {"cluster.storage": str(tight / "storage")})
    run = Run(replace(project, storage=tight / "storage"))
    filler = tight / "filler"
    draw = random.Random("ended")
    sealed: list[Host] = []

    def some_steps_on() -> None:
        run.wait_for_step(run.steps() + draw.randrange(1, 18))

    def lose(name: str) -> None:
        some_steps_on()
        hosts[name].kill()

    def fill() -> None:
        some_steps_on()
        try:
            with filler.open("wb") as out:
                while out.write(b"0" * 65536):
                    out.flush()
        except OSError:
            # Full; for a moment perhaps of the run's own files, before the filler exists.
            return

    def seal() -> None:
        some_steps_on()
        assert run.folder is not None
        first = writer(run.folder)
        (host,) = (host for host in hosts.values() if first in {process.pid for process in host.named("RayTrainWorker")})
        host.seal(tight, sealed=True)
        sealed.append(host)

    for name in ("two", "one", "two")[:ROUNDS]:
        failure = run.train(driver, lambda name=name: lose(name))
        assert failure is not None
        assert failure.startswith("the cluster cannot place 2 workers: each needs 1 CPU on one node; 2 nodes with 1 CPU")
        driver.cluster.start(name, 1)
        failure = run.train(driver, seal)
        sealed.pop().seal(tight, sealed=False)
        assert failure is not None
        assert "ead-only file system" in failure
        run.repro(fill, expected=2)
        assert "o space left on device" in run.said
        filler.unlink(missing_ok=True)
    run.repro()
    note("host lost, storage read-only, storage full", run)
    assert run.results() == undisturbed.results()
    shutil.rmtree(tight / "storage")


@pytest.fixture
def disks(hosts: Mapping[str, Host]) -> Iterator[list[Disk]]:
    """Hosts one and two keep their copies of a storage on S3 on a small disk each."""
    with ExitStack() as stack:
        yield [Disk(hosts[name], stack.enter_context(hosts[name].small_disk(private_folder(), "24m"))) for name in ("one", "two")]


@pytest.mark.weekly
def test_a_full_disk_of_one_node_is_named_and_the_next_run_goes_on(
    run: Run, driver: Driver, disks: list[Disk], s3_on_laptop: str
) -> None:
    """The disk of the first worker's node is full in the middle of a run and at the start of the next. Then there is room again,
    and the disk of the other node is full, which nobody needs.
    """
    shorter = {"epochs": 3}
    assert run.train(driver, train=shorter) is None
    log = driver.project.root.parent / "driver.log"
    filled: list[Disk] = []

    def fill_at(step: int, rank: int) -> None:
        before = log.stat().st_size

        def reached() -> bool:
            said = log.read_bytes()[before:].decode(errors="replace")
            return any(int(number) >= step for number in re.findall(r"step +(\d+)/", said))

        wait_for(reached, 240, f"step {step}", every=0.02)
        (disk,) = (disk for disk in disks if disk.has_first_worker() == (rank == 0))
        disk.fill()
        filled.append(disk)

    def train(disturb: Callable[[], None]) -> dict[str, Any]:
        result, said = driver.train(s3_on_laptop, disturb, cluster={"storage": s3_on_laptop}, train=shorter)
        assert "Traceback" not in said, said
        return result

    failures = [train(lambda: fill_at(20, rank=0))["failure"], train(nothing)["failure"]]
    place = rf"node {re.escape(filled[0].host.address)}: {private_folder()}/storage-\S+"
    for failure in failures:
        assert re.match(rf"{place}: cannot be written \(No space left on device\); nothing was changed, make room", failure), (
            failure
        )
    filled[0].make_room()
    result = train(lambda: fill_at(50, rank=1))
    assert result["failure"] is None
    assert len(filled) == 2
    assert (result["table"], result["outcomes"]) == (run.table, [run.outcome()])
