"""A training run on two hosts that is disturbed at seeded points, and what that cost; beside the same run undisturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pipeline.files import read_json
from pipeline.ledger import WRITER_LOCK
from pipeline.progress import RECORDS
from pipeline.training import REPORT_EVERY
from pipeline.trial import BEST, LATEST, OUTCOME
from tests.cluster.hosts import Host, wait_for
from tests.cluster.lab import BIN, Project

TRIALS = "results/tune/trials.csv"


@dataclass
class Cost:
    """What one disturbance cost."""

    at_step: int
    """The last step reported before it."""
    lost_steps: int
    """Steps that were reported and taken again."""
    detected_s: float | None
    """Until the workers that were disturbed were gone; None where they went on themselves."""
    resumed_s: float
    """From the disturbance to the next report."""


@dataclass
class Run:
    """`dvc repro tune` of a project whose grid is one trial."""

    project: Project
    costs: list[Cost] = field(default_factory=list)
    seconds: float = 0.0
    said: str = ""
    code: int | None = None

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

    def results(self) -> tuple[Any, bytes, bytes]:
        """Outcome, weights and the grid's table: what must not differ from an undisturbed run's."""
        assert self.folder is not None
        weights = (self.folder / BEST / "model.safetensors").read_bytes()
        return read_json(self.folder / OUTCOME)["outcome"], weights, (self.project.root / TRIALS).read_bytes()

    def repro(self, disturb: Callable[[], None] | None = None, expected: int = 0) -> None:
        """Run it to its end, and do something to it meanwhile."""
        began = time.monotonic()
        failed: list[BaseException] = []
        log = self.project.root / "said.log"
        process = self.project.laptop.start(
            str(BIN / "dvc"), "repro", "tune", cwd=self.project.root, env=self.project.env, log=log
        )

        def body() -> None:
            try:
                if disturb is not None:
                    disturb()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        try:
            self.code = process.wait(600)
        finally:
            thread.join(1 if process.returncode is None else 120)
            process.kill()
            self.seconds += time.monotonic() - began
            self.said = log.read_text(encoding="utf-8", errors="replace")
        assert not failed, (failed, self.said[-3000:])
        assert (self.code != 0) == (expected != 0), self.said[-3000:]
        assert "Traceback" not in self.said, self.said

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self.steps() >= step, 240, f"step {step} (now {self.steps()})", every=0.005)

    def disturbed(self, hosts: Mapping[str, Host], disturb: Callable[[], None]) -> None:
        """Do something to the run now, and see what it costs."""
        before, step = workers(hosts), self.steps()
        began = time.monotonic()
        disturb()

        def gone() -> bool:
            return not any(alive(pid) for pid in before)

        def ended() -> bool:
            return self.folder is not None and (self.folder / OUTCOME).exists()

        count = len(self.records())
        # Either they die, or two reports say that they went on.
        wait_for(lambda: gone() or ended() or len(self.records()) > count + 1, 300, "the run notices or goes on", every=0.02)
        detected_s = time.monotonic() - began if gone() and not ended() else None
        count = len(self.records())
        reached = self.steps()
        wait_for(lambda: ended() or len(self.records()) > count, 300, "the run goes on", every=0.02)
        again = self.records()[count:]
        # A run begins again after its checkpoint, and reports ten steps later.
        lost = reached - (again[0]["step"] - REPORT_EVERY) if detected_s is not None and again else 0
        self.costs.append(Cost(step, max(0, lost), detected_s, time.monotonic() - began))


def workers(hosts: Mapping[str, Host]) -> set[int]:
    return {process.pid for host in hosts.values() for process in host.named("RayTrainWorker")}


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def writer(folder: Path) -> int | None:
    """The process that writes a trial's folder."""
    file = folder / WRITER_LOCK
    if not file.exists():
        return None
    inode = f":{file.stat().st_ino} "
    held = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines() if inode in line]
    return next((int(parts[4]) for parts in held if parts[1] == "FLOCK" and int(parts[4]) > 0), None)


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    assert processes, "there is nothing to be disturbed"
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def points(fault: str, last: int, count: int = 3) -> list[int]:
    """Steps at which a fault comes, after the first checkpoint, apart from each other and before the end; always the same."""
    part = (last - 70) // count
    draw = random.Random(fault)
    return [30 + number * part + draw.randrange(part - 20) for number in range(count)]


def note(name: str, run: Run, **more: Any) -> None:
    """Keep what a fault cost where GAUSSCSE_FAULTS says, for docs/reliability.md."""
    if out := os.environ.get("GAUSSCSE_FAULTS"):
        with Path(out).open("a", encoding="utf-8") as file:
            row = {"fault": name, "seconds": round(run.seconds, 1), "costs": [asdict(cost) for cost in run.costs], **more}
            file.write(json.dumps(row) + "\n")
