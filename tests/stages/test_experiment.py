"""A small ablation for real: trained through Ray, killed in the middle, and taken up again."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.stages.running import ended, plain_project, snapshot, start

pytestmark = [pytest.mark.faults, pytest.mark.weekly]

VARIANTS = {
    "grid": {"objective.name": "ent", "objective.neutral_block": True, "tune.batch_sizes": [16, 8], "train.seeds": [1, 2]},
    "simcse": {"objective.name": "simcse"},
    # Its one point cannot be trained.
    "diverging": {"tune.learning_rates": [1.0], "train.head_rate_factor": 1.0e38},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    values = {
        "data.generated": {"train": 300, "dev": 90, "test": 90},
        "model.backbone": str(tiny_backbone),
        "tune.learning_rates": [1e-3],
        "tune.batch_sizes": [16],
        "tune.seeds": [1],
        "train.seeds": [1],
        "experiments.variants": VARIANTS,
    }
    # Two trials of one worker each fit on two cores.
    root = plain_project(tmp_path_factory.mktemp("experiment"), values, {"cluster.workers": 1})
    for stage in ("identity", "prepare", "tokenize"):
        done = ended(start(root, stage))
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="module")
def killed(project: Path) -> dict[str, int]:
    """SIGKILL in the middle, when a trial has ended and others have not; the finished ones with the time of their outcome."""
    process = start(project, "experiment")
    assert process.stdout is not None
    ended: set[str] = set()
    for line in process.stdout:
        found = re.match(r"(\S+: \S+)  step +(\d+)/(\d+) ", line)
        if found and found[2] == found[3]:
            ended.add(found[1])
        if ended and list((project / ".gausscse/trials").glob("*/trial.json")):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (project / "results").exists()
    return {file.parent.name: file.stat().st_mtime_ns for file in (project / ".gausscse/trials").glob("*/trial.json")}


@pytest.fixture(scope="module")
def done(project: Path, killed: dict[str, int]) -> subprocess.CompletedProcess[str]:
    finished = ended(start(project, "experiment"))
    assert finished.returncode == 0, finished.stderr
    return finished


def results(project: Path, name: str) -> Any:
    return json.loads((project / "results/experiments" / name).read_text(encoding="utf-8"))


def rows(project: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((project / "results/experiments" / name).open(encoding="utf-8")))


def test_what_was_finished_before_the_kill_is_not_trained_again(
    project: Path, killed: dict[str, int], done: subprocess.CompletedProcess[str]
) -> None:
    assert killed
    for digest, written in killed.items():
        assert (project / ".gausscse/trials" / digest / "trial.json").stat().st_mtime_ns == written
    assert done.stdout.count("reused, trained before") >= len(killed)


def test_every_variant_goes_through_grid_and_seeds(project: Path, done: subprocess.CompletedProcess[str]) -> None:
    found = {entry["name"]: entry for entry in results(project, "variants.json")}
    assert list(found) == list(VARIANTS)
    assert [entry["overrides"] for entry in found.values()] == list(VARIANTS.values())
    assert [seed["seed"] for seed in found["grid"]["seeds"]] == [1, 2]
    assert [seed["seed"] for seed in found["simcse"]["seeds"]] == [1]
    assert (found["simcse"]["uses_variance"], found["grid"]["uses_variance"]) == (False, True)
    trials = rows(project, "trials.csv")
    assert {(t["batch_size"], t["seed"]) for t in trials if t["variant"] == "grid"} >= {("16", "1"), ("8", "1")}
    best = max((t for t in trials if t["variant"] == "grid" and t["seed"] == "1"), key=lambda t: float(t["best_dev_score"]))
    assert found["grid"]["choice"]["batch_size"] == int(best["batch_size"])


def test_a_variant_that_fails_is_told_and_the_others_go_on(project: Path, done: subprocess.CompletedProcess[str]) -> None:
    entry = next(entry for entry in results(project, "variants.json") if entry["name"] == "diverging")
    assert "the loss is" in entry["failure"]
    assert entry["choice"] is None
    assert entry["seeds"] == []
    assert "experiment: diverging: failed: " in done.stdout
    assert "warning: trial " in done.stderr
    assert "Traceback" not in done.stderr
    assert set(results(project, "summary.json")) == {"simcse", "grid"}
    (trial,) = (t for t in rows(project, "trials.csv") if t["variant"] == "diverging")
    assert (trial["seed"], trial["status"]) == ("1", "failed")
    assert "the loss is" in trial["failure"]


def test_the_next_run_scores_only_what_is_damaged_and_writes_the_same(
    project: Path, done: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    before = snapshot(project / "results")
    # Except a damaged score file, which is computed again.
    kept = next((project / ".gausscse/scores").glob("*/dev.parquet"))
    shutil.copy2(kept, tmp_path / "dev.parquet")
    kept.write_bytes(kept.read_bytes()[:-1])
    again = ended(start(project, "experiment"))
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("reused, scored before") == 2
    assert pq.read_table(kept).equals(pq.read_table(tmp_path / "dev.parquet"))
    assert snapshot(project / "results") == before
