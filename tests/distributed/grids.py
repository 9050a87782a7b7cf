"""What the tests of a disturbed grid share: the undisturbed grid they compare with, and ways to disturb one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pipeline.cluster.grid_search import TrialResult
from pipeline.config.execution import Execution
from pipeline.config.load import load_execution
from pipeline.tracking import mlflow_runs
from pipeline.tracking.server import Tracker
from pipeline.trials.locks import WRITER_LOCK
from pipeline.trials.progress_log import LOG, RECORDS
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import LATEST, OUTCOME, Trial
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import read_json, write_json
from tests.conftest import ROOT
from tests.gates import Gate, holder, wait_for

# Two places for workers on any machine with cores for them, one worker a trial.
EXECUTION = load_execution(ROOT / "execution.yaml")
EXECUTION = EXECUTION.model_copy(
    update={
        "cluster": EXECUTION.cluster.model_copy(
            update={"workers": 1, "cpus_per_worker": float(max(1, (os.cpu_count() or 1) // 2)), "max_failures": 1}
        )
    }
)


@dataclass(frozen=True)
class Grid:
    """A good trial, another, one that falls behind, and one whose workers are killed; where they ran, and what came out."""

    places: TrialStore
    good: Trial
    other: Trial
    fast: Trial
    results: list[TrialResult]
    parent: str
    together: int
    """The most trials that were seen running at once."""
    killed: int
    """Workers of the last trial that were killed."""

    def elsewhere(self, storage: Path) -> TrialStore:
        return TrialStore(train_tokens=self.places.train_tokens, dev_tokens=self.places.dev_tokens, storage=storage)

    def assert_same(self, there: TrialStore, *trials: Trial) -> None:
        for trial in trials:
            ours, undisturbed = there.folder(trial).path, self.places.folder(trial).path
            assert read_json(ours / OUTCOME)["outcome"] == read_json(undisturbed / OUTCOME)["outcome"]
            assert (ours / BEST / "model.safetensors").read_bytes() == (undisturbed / BEST / "model.safetensors").read_bytes()
            assert not (ours / LATEST).exists()
            assert not list(ours.glob(".*"))


@contextmanager
def meanwhile(look: Callable[[], bool]) -> Iterator[None]:
    """Look again and again while the block runs, until `look` says that it has done what it is for; raises what it raised."""
    over = threading.Event()

    def loop() -> None:
        while not over.is_set() and not look():
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(loop)
        try:
            yield
        finally:
            over.set()
        looked.result()


@contextmanager
def held_at_its_next_report(folder: Path) -> Iterator[None]:
    """While the block runs, the log is a pipe without a reader: the training thread waits for one, other threads go on."""
    log, kept, pipe = folder / LOG, folder / "kept", folder / "pipe"
    step = last_step(folder)
    os.mkfifo(pipe)
    os.link(log, kept)
    # Under both names: `log` is replaced at once, so that no report comes in between.
    os.link(pipe, folder / "log")
    (folder / "log").rename(log)
    try:
        yield
    finally:
        kept.rename(log)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        wait_for(lambda: last_step(folder) > step or holder(folder / WRITER_LOCK) is None, 60, "the run goes on", every=0.01)
        os.close(reader)
        pipe.unlink()


def signal_all(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def trainers() -> list[int]:
    """Processes that train a trial alone, in this process's own cluster."""
    found: list[int] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "ImplicitFunc" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def runs_of(tracker: Tracker, parent: str, trial: Trial) -> list[Any]:
    where = f"tags.`{mlflow_runs.PARENT_TAG}` = '{parent}' and tags.`{mlflow_runs.TRIAL_TAG}` = '{trial.digest}'"
    return list(tracker.client.search_runs([tracker.experiment_id], where))


def specify(
    folder: Path, places: Mapping[str, Path | None], mlflow: Path, trials: list[Trial], execution: Execution = EXECUTION
) -> None:
    """What grid_driver.py trains."""
    spec = {
        "execution": execution.model_dump(mode="json"),
        "trials": [trial.model_dump(mode="json") for trial in trials],
        "places": {name: str(path) for name, path in places.items() if path is not None},
        "mlflow": str(mlflow),
    }
    write_json(folder / "spec.json", spec)


def last_step(folder: Path) -> int:
    """Of the last report; 0 before the first."""
    written = (folder / RECORDS).read_text(encoding="utf-8").splitlines() if (folder / RECORDS).exists() else []
    return json.loads(written[-1])["step"] if written else 0


def lines(folder: Path) -> int:
    return (folder / RECORDS).read_bytes().count(b"\n") if (folder / RECORDS).exists() else 0


@contextmanager
def start(folder: Path, out: str, gate: Gate | None = None, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(ROOT / "tests/distributed/grid_driver.py"), str(folder / "spec.json"), str(folder / out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(gate.environment(str(ROOT)) if gate else {}), **environment}
    log = (folder / f"{out}.log").open("ab")
    with log, subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()
