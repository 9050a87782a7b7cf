"""The worker that one trial after another is trained in: it is stopped, or dies while no trial uses it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from gates import holder, wait_for
from store import random_stores

from pipeline.cluster import kept_worker
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session as ray_session
from pipeline.config.load import load_execution
from pipeline.tracking import mlflow_runs, server
from pipeline.trials import locks
from tests.distributed.grids import trainers
from tests.distributed.test_grid_faults import last_step, meanwhile
from tests.distributed.test_trials import make_trial, places
from tests.trial_of import worker_config

pytestmark = pytest.mark.faults

HANG_S = 8.0
# The busy machine of a test is slow.
BOUND_S = HANG_S + 25


@pytest.mark.weekly
def test_a_kept_worker_that_is_stopped_is_replaced_and_the_figures_are_the_same(tiny_backbone: Path, tmp_path: Path) -> None:
    execution = load_execution(ROOT / "execution.yaml")
    # One trial at a time.
    cores = float(os.cpu_count() or 1)
    params = execution.cluster.model_copy(update={"workers": 1, "cpus_per_worker": cores, "hang_timeout_s": HANG_S})
    stores = random_stores(tmp_path / "stores", sentences=400, triplets=800)
    trials = [make_trial(tiny_backbone, stores, rate) for rate in (1e-3, 2e-3)]
    here, there = places(stores, tmp_path / "undisturbed"), places(stores, tmp_path / "storage")
    tracker = server.open_tracker(execution.tracking, tmp_path / "mlflow")
    parent = mlflow_runs.pipeline_run(tracker, "stop", {}, {})
    first, second = (there.folder(trial).path for trial in trials)
    workers: list[int] = []
    moments: list[float] = []

    def stop_the_second() -> bool:
        if not workers and (worker := holder(first / locks.WRITER_LOCK)) is not None:
            workers.append(worker)
        worker = holder(second / locks.WRITER_LOCK)
        if worker is None or last_step(second) < 50:
            return False
        workers.append(worker)
        os.kill(worker, signal.SIGSTOP)
        began = time.monotonic()
        while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > began + BOUND_S:
                break
            time.sleep(0.1)
        moments.append(time.monotonic() - began)
        return True

    with ray_session(params) as on:
        undisturbed = run_trials(trials, here, lambda: on, tracker, parent)
        with meanwhile(stop_the_second):
            results = run_trials(trials, there, lambda: on, tracker, parent)
    # One process trained the first trial and began the second.
    assert len(workers) == 2 and workers[0] == workers[1]
    assert len(moments) == 1 and HANG_S / 2 < moments[0] < BOUND_S, moments
    assert [result.failure for result in results] == [None, None]
    assert [result.outcome for result in results] == [result.outcome for result in undisturbed]
    for trial in trials:
        weights = [place.folder(trial).model / "model.safetensors" for place in (here, there)]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_kept_worker_that_dies_between_two_trials_costs_neither_an_attempt(tiny_backbone: Path, tmp_path: Path) -> None:
    params = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"workers": 1, "max_failures": 0})
    stores = random_stores(tmp_path / "stores", sentences=100, triplets=40)
    store = places(stores, tmp_path / "storage")
    with ray_session(params) as on:
        for rate in (1e-3, 2e-3, 3e-3):
            trial = make_trial(tiny_backbone, stores, rate)
            config = worker_config(trial, stores, on.params, storage=str(store.storage), search="search", use_gpu=on.use_gpu)
            folder = store.folder(trial)
            before = trainers()
            assert folder.claim(None, 0.0)
            with folder.driven("search"):
                assert kept_worker.fit(config, folder) is None
            folder.refresh()
            assert folder.outcome() is not None
            (worker,) = trainers()
            # The second trial found the first one's worker; the third found it dead.
            assert (before == [worker]) == (rate == 2e-3)
            if rate == 2e-3:
                os.kill(worker, signal.SIGKILL)
                wait_for(lambda: not trainers(), 30, "the worker ends")
        kept_worker._end()
