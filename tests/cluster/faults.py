"""A trial on two hosts that is disturbed at seeded points: the disturbances, and what they cost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pipeline.training.trainer import REPORT_EVERY
from pipeline.trials.locks import WRITER_LOCK
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.trial import LATEST, OUTCOME, PREVIOUS
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import read_json
from tests.cluster.hosts import Cluster, Host
from tests.cluster.lab import BIN, Project
from tests.gates import holder, stopped, wait_for

TRIALS = "results/tune/trials.csv"


@dataclass
class Cost:
    """What one disturbance cost."""

    fault: str
    at_step: int
    """The last step reported before it."""
    lost_steps: int
    """Steps that were reported and taken again."""
    detected_s: float | None
    """Until the workers that were disturbed were gone; None where they went on themselves."""
    resumed_s: float
    """From the disturbance to the next report."""


class Driver:
    """A pipeline run (driver.py) that trains one trial after the other: what starts a job is paid for once.

    Args:
        host: where it runs; the head by default.
    """

    def __init__(self, project: Project, cluster: Cluster, host: Host | None = None) -> None:
        self.project, self.cluster, self._host = project, cluster, host or cluster.head
        self._log = project.root.parent / "driver.log"
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(60)

    def train(
        self, storage: Path | str, disturb: Callable[[], None], **changes: Mapping[str, object]
    ) -> tuple[dict[str, Any], str]:
        """Have the grid's one trial trained in a storage, and do something to it meanwhile.

        Args:
            storage: a folder, or the URI of one on S3, which `changes` has in the cluster's keys as well.
            changes: keys of execution.yaml's cluster and of params.yaml's model and train.

        Returns:
            what came of it, and what was said meanwhile.
        """
        process = self._started()
        assert process.stdin is not None
        # Not where the storage is: a test fills that disk.
        out = self.project.root / f"out-{time.monotonic_ns()}.json"
        before = self._log.stat().st_size
        if isinstance(storage, Path):
            storage.parent.mkdir(parents=True, exist_ok=True)
        process.stdin.write(json.dumps({"storage": str(storage), "out": str(out), **changes}) + "\n")
        process.stdin.flush()

        def ended() -> bool:
            return out.exists() or process.poll() is not None

        meanwhile(disturb, lambda: wait_for(ended, 600, "the driver answers", every=0.1))
        said = self._log.read_bytes()[before:].decode(errors="replace")
        assert out.exists(), said[-3000:]
        return read_json(out), said

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            script = Path(__file__).with_name("driver.py")
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._host.command, f"--wd={self.project.root}", sys.executable, str(script), self.cluster.gcs],
                    env={**self._host.env, **self.cluster.env, "PYTHONPATH": "."},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
        return self._process


def meanwhile(disturb: Callable[[], None], wait: Callable[[], object]) -> None:
    """Do one thing while waiting for another; what goes wrong in either is raised."""
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(disturb)
        wait()
        disturbed.result(120)


def nothing() -> None:
    """Leave it alone."""


@dataclass
class Run:
    """The one trial of a project's grid in a storage of its own, trained by one order or `dvc repro` after the other."""

    project: Project
    costs: list[Cost] = field(default_factory=list)
    seconds: float = 0.0
    said: str = ""
    """By the last of them."""
    parent: str = ""
    """Its run in MLflow."""
    table: str = ""

    @property
    def folder(self) -> Path | None:
        return next(self.project.storage.glob("trials/*"), None)

    def records(self) -> list[dict[str, Any]]:
        """Reports so far, those of steps that are taken again too."""
        if self.folder is None or not (self.folder / RECORDS).exists():
            return []
        lines = (self.folder / RECORDS).read_bytes().rpartition(b"\n")[0].splitlines()
        return [record for record in map(json.loads, lines) if "step" in record]

    def steps(self) -> int:
        return max((record["step"] for record in self.records()), default=0)

    def checkpoint(self) -> int:
        """The step of the newest checkpoint; 0 where there is none."""
        with suppress(OSError, ValueError, StopIteration):
            if self.folder is not None:
                return int(json.loads((self.folder / LATEST / "state.json").read_text(encoding="utf-8"))["step"])
        return 0

    def writes(self) -> bool:
        """Whether a worker has it to write in."""
        return self.folder is not None and writer(self.folder) is not None

    def ended(self) -> bool:
        return self.folder is not None and (self.folder / OUTCOME).exists()

    def outcome(self) -> dict[str, Any]:
        assert self.folder is not None
        return read_json(self.folder / OUTCOME)["outcome"]

    def results(self) -> tuple[object, bytes, str]:
        """Outcome, weights and the grid's table: what must not differ from an undisturbed run's."""
        assert self.folder is not None
        return self.outcome(), (self.folder / BEST / "model.safetensors").read_bytes(), self.table

    def train(self, driver: Driver, disturb: Callable[[], None] = nothing, **changes: Mapping[str, object]) -> str | None:
        """Have the driver train it; returns why it failed, if it did."""
        began = time.monotonic()
        result, self.said = driver.train(self.project.storage, disturb, **changes)
        self.seconds += time.monotonic() - began
        self.parent, self.table = result["parent"], result["table"]
        assert "Traceback" not in self.said, self.said
        return result["failure"]

    def repro(self, disturb: Callable[[], None] = nothing, expected: int = 0) -> None:
        """`dvc repro tune`, which submits a job, to its end."""
        began = time.monotonic()
        log = self.project.root / "said.log"
        log.unlink(missing_ok=True)
        process = self.project.laptop.start(
            str(BIN / "dvc"), "repro", "tune", cwd=self.project.root, env=self.project.env, log=log
        )
        try:
            meanwhile(disturb, lambda: process.wait(600))
        finally:
            process.kill()
            self.seconds += time.monotonic() - began
            self.said = log.read_text(encoding="utf-8", errors="replace")
        assert (process.wait() != 0) == (expected != 0), self.said[-3000:]
        assert "Traceback" not in self.said, self.said
        if expected:
            assert "error: " in self.said
            assert not (self.project.root / "results").exists()
        else:
            self.table = (self.project.root / TRIALS).read_text(encoding="utf-8")

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self.steps() >= step, 240, f"step {step} (now {self.steps()})", every=0.01)

    def disturbed(self, fault: str, hosts: Mapping[str, Host], disturb: Callable[[], None]) -> dict[str, Any] | None:
        """Do something to the run now, and see what it costs; returns its first report after that, if there is one."""
        assert self.folder is not None
        first = writer(self.folder)
        # Looking for the workers takes time; meanwhile they do not come to their end.
        with stopped([first] if first is not None else []):
            before, step = workers(hosts), self.steps()
        began = time.monotonic()
        disturb()

        def gone() -> bool:
            return not any(alive(pid) for pid in before)

        count = len(self.records())
        # Either they die, or two reports say that they went on.
        wait_for(lambda: gone() or self.ended() or len(self.records()) > count + 1, 300, f"{fault} is noticed", every=0.05)
        detected_s = time.monotonic() - began if gone() and not self.ended() else None
        count = len(self.records())
        reached = self.steps()
        wait_for(lambda: self.ended() or len(self.records()) > count, 300, f"after {fault} the run goes on", every=0.05)
        again = next(iter(self.records()[count:]), None)
        # A run begins again after its checkpoint, and reports ten steps later.
        lost = reached - (again["step"] - REPORT_EVERY) if detected_s is not None and again else 0
        self.costs.append(Cost(fault, step, max(0, lost), detected_s, time.monotonic() - began))
        return again


def workers(hosts: Mapping[str, Host]) -> set[int]:
    return {process.pid for host in hosts.values() for process in host.named("RayTrainWorker")}


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def writer(folder: Path) -> int | None:
    """The process that writes a trial's folder."""
    return holder(folder / WRITER_LOCK)


@contextmanager
def without_memory() -> Iterator[Callable[[int], None]]:
    """A function that takes a process's memory away: the kernel kills it when it touches another page (a control group)."""
    first = Path("/sys/fs/cgroup/memory")
    root, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    if root != first:
        (root / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    group = root / f"gausscse-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(2**16), encoding="ascii")

        def take(pid: int) -> None:
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")

        yield take
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(encoding="ascii").strip(), 30, "the group is empty", every=0.1)
        group.rmdir()


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    assert processes, "there is nothing to be disturbed"
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Faults:
    """The faults from which a run goes on by itself."""

    def __init__(self, run: Run, cluster: Cluster, draw: random.Random) -> None:
        self._run, self._hosts, self._cluster, self._draw = run, cluster.hosts, cluster, draw

    def in_some_order(self) -> list[tuple[str, Callable[[], None]]]:
        every = [
            ("SIGKILL of a worker", self._worker_is_killed),
            ("SIGSTOP of a worker", self._worker_hangs),
            ("a worker out of memory", self._memory_runs_out),
            ("SIGKILL of a raylet", self._raylet_is_killed),
            ("network cut", self._network_is_cut),
            ("SIGKILL in a checkpoint's write", self._writer_is_killed),
            ("newest checkpoint truncated", self._checkpoint_is_truncated),
        ]
        return self._draw.sample(every, len(every))

    def _some_host(self) -> str:
        return self._draw.choice(("one", "two"))

    def _worker_is_killed(self) -> None:
        send(self._hosts[self._some_host()].named("RayTrainWorker"), signal.SIGKILL)

    def _worker_hangs(self) -> None:
        send(self._hosts[self._some_host()].named("RayTrainWorker"), signal.SIGSTOP)

    def _memory_runs_out(self) -> None:
        (worker,) = (process for process in self._hosts[self._some_host()].named("RayTrainWorker"))
        with without_memory() as taken:
            taken(worker.pid)
            wait_for(lambda: not alive(worker.pid), 60, "the kernel kills it", every=0.05)

    def _raylet_is_killed(self) -> None:
        name = self._some_host()
        others = self._hosts["two" if name == "one" else "one"].named("RayTrainWorker")
        # Or a fast machine takes the run to its end before the raylet's workers have noticed.
        send(others, signal.SIGSTOP)
        send(self._hosts[name].named("raylet/raylet"), signal.SIGKILL)
        wait_for(lambda: not self._hosts[name].named("RayTrainWorker"), 60, "the raylet's workers die with it")
        send(others, signal.SIGCONT)
        self._cluster.start(name, 1)

    def _network_is_cut(self) -> None:
        host = self._hosts[self._some_host()]
        host.cable(plugged=False)
        time.sleep(20)
        host.cable(plugged=True)

    def _writer_is_killed(self) -> None:
        assert self._run.folder is not None
        folder = self._run.folder
        wait_for(lambda: bool(list(folder.glob(f".{LATEST}.*.tmp/*"))), 120, "a checkpoint is written", every=0.0002)
        process = writer(folder)
        assert process is not None
        os.kill(process, signal.SIGKILL)

    def _checkpoint_is_truncated(self) -> None:
        assert self._run.folder is not None
        latest, previous = self._run.folder / LATEST, self._run.folder / PREVIOUS

        def hold_still() -> bool:
            self._all_workers(signal.SIGSTOP)
            if latest.is_dir() and previous.is_dir():
                return True
            self._all_workers(signal.SIGCONT)
            return False

        wait_for(hold_still, 120, "there are two checkpoints", every=0.2)
        file = latest / "model.safetensors"
        with file.open("r+b") as weights:
            weights.truncate(file.stat().st_size // 2)
        self._all_workers(signal.SIGKILL)

    def _all_workers(self, number: signal.Signals) -> None:
        send([process for host in self._hosts.values() for process in host.named("RayTrainWorker")], number)


class Disk:
    """A host's own small disk, with what its processes keep there of a storage on S3."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self._folder = host, folder
        self._filler = folder / "filler"

    def has_first_worker(self) -> bool:
        there = workers({self.host.name: self.host})
        return any(writer(trial) in there for trial in self._folder.glob("storage-*/trials/*"))

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as out:
            while True:
                out.write(b"0" * 65536)

    def make_room(self) -> None:
        self._filler.unlink()


def note(name: str, run: Run, **more: Any) -> None:
    """Keep what faults cost where GAUSSCSE_FAULTS says, for docs/reliability.md."""
    if out := os.environ.get("GAUSSCSE_FAULTS"):
        with Path(out).open("a", encoding="utf-8") as file:
            row = {"run": name, "seconds": round(run.seconds, 1), "costs": [asdict(cost) for cost in run.costs], **more}
            file.write(json.dumps(row) + "\n")
