"""Ctrl-C in the middle of a search: it ends in order, and the next `dvc repro` runs to its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.tracking.server import open_tracker
from tests.gates import Gate
from tests.stages.conftest import small_project
from tests.stages.running import repro, set_param, stages_run

pytestmark = [pytest.mark.faults, pytest.mark.weekly]


def statuses(project: Path) -> list[tuple[str, str]]:
    """(kind, status) of every run in MLflow, sorted."""
    tracker = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project)
    runs = tracker.client.search_runs([tracker.experiment_id])
    return sorted((run.data.tags.get("gausscse.kind", "trial"), run.info.status) for run in runs)


def test_ctrl_c_ends_a_search_in_order(tiny_backbone: Path, tmp_path: Path) -> None:
    project = small_project(tmp_path, tiny_backbone)
    assert stages_run(repro(project, "tokenize")) == ["prepare", "tokenize"]
    # A trial that the gate holds writes no checkpoint, so the whole grace period would pass.
    set_param(project, "grace_s: 20.0", "grace_s: 3.0", "execution.yaml")
    # No trial comes to its end before Ctrl-C does.
    gate = Gate(tmp_path / "gate", r"/trials/\w+/\.trial\.json\.")
    gate.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.tune"],
        cwd=project,
        env={**os.environ, **gate.environment(os.environ.get("PYTHONPATH", ""))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        reported = any(re.search(r"step +\d+/", line) for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=400)
    finally:
        gate.open()
        process.kill()
    assert reported, err
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("error: interrupted; finished work is kept")
    assert "Traceback" not in err
    assert not (project / "results").exists()
    assert ("pipeline", "KILLED") in statuses(project)
    assert "RUNNING" not in {status for _, status in statuses(project)}
    assert stages_run(repro(project, "tune")) == ["tune"]
    assert [status for kind, status in statuses(project) if kind == "pipeline"] == ["FINISHED"]
