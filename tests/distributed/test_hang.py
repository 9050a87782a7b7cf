"""A worker whose training thread hangs while its process lives."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session as ray_session
from pipeline.config.load import load_execution
from pipeline.tracking import mlflow_runs, server
from pipeline.trials import locks
from pipeline.trials.trial import OUTCOME
from pipeline.utils.atomic_io import read_json
from tests.conftest import ROOT
from tests.distributed.grids import held_at_its_next_report, last_step, meanwhile
from tests.distributed.test_trials import make_trial, places
from tests.gates import holder
from tests.store import random_stores

pytestmark = [pytest.mark.faults, pytest.mark.weekly]

HANG_S = 8.0
# The others notice, Ray waits for the group to end, and the busy machine of a test is slow.
BOUND_S = HANG_S + 25


def test_a_worker_that_hangs_in_its_report_is_started_again(tiny_backbone: Path, tmp_path: Path) -> None:
    """The log of a run becomes a pipe without a reader: the training thread waits forever to open it, other threads go on."""
    execution = load_execution(ROOT / "execution.yaml")
    params = execution.cluster.model_copy(update={"workers": 2, "hang_timeout_s": HANG_S})
    stores = random_stores(tmp_path / "stores", sentences=400, triplets=800)
    trial = make_trial(tiny_backbone, stores, 1e-3)
    here, there = places(stores, tmp_path / "undisturbed"), places(stores, tmp_path / "storage")
    tracker = server.open_tracker(execution.tracking, tmp_path / "mlflow")
    parent = mlflow_runs.pipeline_run(tracker, "hang", {}, {})
    folder = there.folder(trial).path
    moments: list[float] = []
    alive: list[str] = []
    over = threading.Event()

    def hang() -> bool:
        if last_step(folder) < 50:
            return False
        worker = holder(folder / locks.WRITER_LOCK)
        assert worker is not None
        with held_at_its_next_report(folder):
            began = time.monotonic()
            while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() < began + HANG_S / 2:
                    alive.append(psutil.Process(worker).status())
                # A worker that still waits then goes on, so that the test fails and does not hang itself.
                if over.wait(0.1) or time.monotonic() > began + BOUND_S:
                    break
            moments.append(time.monotonic() - began)
        return True

    with ray_session(params) as on:
        (undisturbed,) = run_trials([trial], here, lambda: on, tracker, parent)
        with meanwhile(hang):
            (result,) = run_trials([trial], there, lambda: on, tracker, parent)
            over.set()
    assert alive and psutil.STATUS_STOPPED not in alive
    assert len(moments) == 1 and HANG_S / 2 < moments[0] < BOUND_S, moments
    assert result.failure is None
    assert result.outcome == undisturbed.outcome
    assert read_json(folder / OUTCOME)["outcome"] == read_json(here.folder(trial).path / OUTCOME)["outcome"]
    weights = [place.folder(trial).model / "model.safetensors" for place in (here, there)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    print(f"a hang noticed, and its worker ended, after {moments[0]:.1f} s (hang_timeout_s: {HANG_S:g})")
