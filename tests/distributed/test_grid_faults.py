"""A grid that is disturbed: drivers and workers killed at any moment, trials that always fail, trials that are stopped early.

Every disturbed trial is compared, byte by byte, with the same trial undisturbed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import Session
from pipeline.cluster.session import session as ray_session
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.training.trainer import REPORT_EVERY
from pipeline.trials import locks
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.recipe_run import choose, table_rows
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import LATEST, OUTCOME, PAUSE, STOPPED, EarlyStopping
from pipeline.utils.atomic_io import read_json
from tests.distributed.grids import (
    EXECUTION,
    Grid,
    held_at_its_next_report,
    last_step,
    lines,
    meanwhile,
    runs_of,
    signal_all,
    specify,
    start,
    trainers,
)
from tests.gates import Gate, holder, wait_for
from tests.store import make_store
from tests.trial_of import trial_on

pytestmark = pytest.mark.faults

RULE = EarlyStopping(grace_scorings=2, reduction_factor=2)


@pytest.fixture(scope="module")
def on() -> Iterator[Session]:
    with ray_session(EXECUTION.cluster) as session:
        yield session


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    return server.open_tracker(EXECUTION.tracking, tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="module")
def grid(on: Session, tracker: Tracker, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    r = np.random.default_rng(5)
    # A random encoder tells near copies from other sentences. What is trained says the opposite: the faster a trial learns, the
    # worse it scores.
    words = r.integers(5, 90, (80, 2, 6)).tolist()
    texts = [[2, *text, 3] for one, far in words for text in (one, far, [*one[:5], far[0]])]
    rows = [(3 * k, 3 * k + 1, 3 * k + 2) for k in range(len(words))]
    pairs = [pair for premise, far, near in rows for pair in ((premise, near, 0), (premise, far, 2))]
    folder = tmp_path_factory.mktemp("grid")
    places = TrialStore(
        train_tokens=make_store(folder / "train", texts, triplets=rows),
        dev_tokens=make_store(folder / "dev", texts, pairs={"dev": pairs}),
        storage=folder / "storage",
    )
    good = trial_on(tiny_backbone, (places.train_tokens, places.dev_tokens), 3e-4, eval_every=20, epochs=20)
    other, fast = good.model_copy(update={"seed": 2}), good.model_copy(update={"learning_rate": 1e-2})
    trials = [good, other, fast, good.model_copy(update={"seed": 3})]
    folders = [places.folder(trial).path for trial in trials]
    parent = mlflow_runs.pipeline_run(tracker, "grid", {}, {})
    counts: list[int] = []
    killed: set[int] = set()
    held: set[int] = set()

    def watch_and_kill() -> bool:
        begun = [one for one in folders[:3] if (one / RECORDS).exists() and not (one / OUTCOME).exists()]
        counts.append(len(begun))
        # The first to begin is held until there are as many as there is room for.
        if max(counts) < min(on.concurrent, 3):
            held.update(worker for one in begun if (worker := holder(one / locks.WRITER_LOCK)) is not None)
            signal_all(held, signal.SIGSTOP)
        else:
            signal_all(held, signal.SIGCONT)
            held.clear()
        worker = holder(folders[3] / locks.WRITER_LOCK)
        if worker is not None and worker not in killed:
            killed.add(worker)
            os.kill(worker, signal.SIGKILL)
        return False

    with meanwhile(watch_and_kill):
        results = run_trials(trials, places, lambda: on, tracker, parent)
    return Grid(places, good, other, fast, results, parent, max(counts), len(killed))


def test_as_many_trials_as_fit_run_at_once_and_all_end(grid: Grid, on: Session) -> None:
    assert all(result.outcome is not None for result in grid.results[:3])
    assert grid.together == min(on.concurrent, 3)


def test_a_trial_whose_workers_always_die_fails_and_others_finish(grid: Grid, tracker: Tracker) -> None:
    doomed = grid.results[3]
    assert grid.killed == 1 + EXECUTION.cluster.max_failures
    assert doomed.outcome is None
    assert doomed.failure is not None
    assert re.search(r"worker 0 \(process \d+ on .*\) was killed \(SIGKILL\) .* \(given up after 2 attempts\)", doomed.failure)
    rows = table_rows(grid.results)
    assert [row["status"] for row in rows] == ["finished", "finished", "finished", "failed"]
    assert doomed.failure in rows[3]["failure"]
    (run,) = runs_of(tracker, grid.parent, doomed.trial)
    assert (run.info.status, run.data.tags["gausscse.failure"]) == ("FAILED", doomed.failure)


def test_a_trial_that_falls_behind_is_stopped_and_taken_up_later(
    grid: Grid, on: Session, tracker: Tracker, tmp_path: Path
) -> None:
    there = grid.elsewhere(tmp_path)
    trials = [grid.good, grid.fast]
    shutil.copytree(grid.places.folder(grid.good).path, there.folder(grid.good).path)
    folder = there.folder(grid.fast).path
    parent = mlflow_runs.pipeline_run(tracker, "stopping", {}, {})

    def hold_until_it_is_stopped() -> bool:
        if last_step(folder) < 40:
            return False
        with held_at_its_next_report(folder):
            wait_for((folder / STOPPED).exists, 120, "the search stops it", every=0.01)
        return True

    with meanwhile(hold_until_it_is_stopped):
        good, fast = run_trials(trials, there, lambda: on, tracker, parent, RULE)
    assert good.outcome is not None
    assert (fast.outcome, fast.failure) == (None, None)
    note = read_json(folder / STOPPED)
    history = {entry["step"]: entry["score"] for entry in grid.results[2].outcome.history}  # type: ignore[union-attr]
    assert note["reason"].startswith("stopped early at step 40: ") and f" {history[40]:.2f} at scoring 2 " in note["reason"]
    assert note["early_stopping"] == asdict(RULE)
    assert fast.stopped == note["reason"]
    assert history[40] < {e["step"]: e["score"] for e in good.outcome.history}[40]
    # Its workers are gone and their places free.
    assert holder(folder / locks.WRITER_LOCK) is None
    for _ in range(300):
        if not trainers() and ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]:
            break
        time.sleep(0.1)
    assert not trainers()
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]
    assert 40 <= last_step(folder) < good.outcome.total_steps
    (run,) = runs_of(tracker, parent, grid.fast)
    assert (run.info.status, run.data.tags["gausscse.how"]) == ("KILLED", note["reason"])
    assert choose([good, fast]).learning_rate == grid.good.learning_rate
    assert [row["status"] for row in table_rows([good, fast])] == ["finished", "stopped"]

    before = (folder / RECORDS).stat().st_mtime_ns
    assert run_trials(trials, there, lambda: on, tracker, parent, RULE)[1] == fast
    assert (folder / RECORDS).stat().st_mtime_ns == before

    # And the process that drives it is killed once.
    killed: list[int] = []

    def kill() -> bool:
        driver = holder(folder / locks.DRIVER_LOCK)
        if driver not in (None, os.getpid()) and (folder / RECORDS).stat().st_mtime_ns != before:
            killed.append(driver)
            os.kill(driver, signal.SIGKILL)
        return bool(killed)

    with meanwhile(kill):
        (_, again) = run_trials(trials, there, lambda: on, tracker, parent)
    assert killed
    assert again.outcome is not None
    grid.assert_same(there, grid.fast)
    assert not (folder / STOPPED).exists()
    (run,) = runs_of(tracker, parent, grid.fast)
    assert run.info.status == "FINISHED"
    assert [m.step for m in tracker.client.get_metric_history(run.info.run_id, "loss")] == list(history)


@pytest.mark.weekly
def test_a_driver_told_to_end_or_killed_at_any_moment_goes_on_where_it_was(grid: Grid, tracker: Tracker, tmp_path: Path) -> None:
    there = grid.elsewhere(tmp_path / "storage")
    trials = [grid.good, grid.other]
    specify(tmp_path, asdict(there), Path(tracker.uri.removeprefix("sqlite:///")).parent, trials)
    first, second = (there.folder(trial).path for trial in trials)
    after = random.Random(11).choices(range(1, 5), k=1)[0]
    gate = Gate(tmp_path / "gate", rf"/{first.name}/\.{LATEST}\.[0-9a-f]+\.tmp")
    held: set[int] = set()

    def both_have_reported() -> bool:
        """More than what the driver before left behind; they are held, so that neither ends before the driver asks it to."""
        new = [one for one in (first, second) if lines(one) > reported[one]]
        held.update(worker for one in new if (worker := holder(one / locks.WRITER_LOCK)) is not None)
        signal_all(held, signal.SIGSTOP)
        return len(held) == 2

    def a_checkpoint_is_written() -> bool:
        if lines(first) >= 2 * after:
            gate.close()
        return gate.holds()

    moments: list[tuple[signal.Signals, Callable[[], bool]]] = [
        # Before the first step; at the first reports; while a checkpoint is written; when one trial has ended, the other not yet.
        (signal.SIGKILL, lambda: holder(first / locks.WRITER_LOCK) is not None),
        (signal.SIGTERM, both_have_reported),
        (signal.SIGKILL, a_checkpoint_is_written),
        (signal.SIGKILL, lambda: (first / OUTCOME).exists() or (second / OUTCOME).exists()),
    ]
    left: list[float] = []
    reported: dict[Path, int] = {}
    for number, moment in moments:
        reported = {one: lines(one) for one in (first, second)}
        out = f"{number.name}.json"
        with start(tmp_path, out, gate) as driver:
            while not moment() and driver.poll() is None:
                time.sleep(0.0005)
            assert driver.poll() is None, "it ended before it could be killed"
            orphan = holder(first / locks.WRITER_LOCK) or holder(second / locks.WRITER_LOCK)
            driver.send_signal(number)
            if number == signal.SIGTERM:
                wait_for(lambda: all((one / PAUSE).exists() for one in (first, second)), 60, "they are asked to end", every=0.01)
                signal_all(held, signal.SIGCONT)
            code = driver.wait(60)
        if number == signal.SIGTERM:
            assert code == 143
            told = (tmp_path / f"{out}.log").read_text(encoding="utf-8")
            assert "stopping: training runs write a checkpoint (20 s at most; Ctrl-C again leaves at once)" in told
            assert told.splitlines()[-1].startswith("error: interrupted; finished work is kept")
            # Of the step that each was at, which is beyond the last report, and before the next.
            for trial in (first, second):
                assert 0 <= read_json(trial / LATEST / "state.json")["step"] - last_step(trial) < REPORT_EVERY
        if orphan is not None:
            began = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                while time.monotonic() < began + 60 and psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.01)
            left.append(time.monotonic() - began)
        gate.open()
    assert all(seconds < 60 for seconds in left), left
    done = [file for file in (first / OUTCOME, second / OUTCOME) if file.exists()]
    finished_at = [file.stat().st_mtime_ns for file in done]
    with start(tmp_path, "out.json", gate) as driver:
        assert driver.wait(400) == 0
    grid.assert_same(there, *trials)
    assert [file.stat().st_mtime_ns for file in done] == finished_at
    assert read_json(tmp_path / "out.json") == [read_json(there.folder(t).path / OUTCOME)["outcome"] for t in trials]
    parent = mlflow_runs.pipeline_run(tracker, "killed", {}, {})
    for trial in trials:
        (run,) = runs_of(tracker, parent, trial)
        steps = [m.step for m in tracker.client.get_metric_history(run.info.run_id, "loss")]
        assert steps == [entry["step"] for entry in read_json(there.folder(trial).path / OUTCOME)["outcome"]["history"]]
