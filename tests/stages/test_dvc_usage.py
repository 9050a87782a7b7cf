"""DVC as people use it: remotes, second clones, experiments, the queue, plots, a kill; real dvc and stages, a tiny project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_execution
from pipeline.registry.loading import load
from pipeline.tracking.server import open_tracker
from tests.copies import copy_project
from tests.stages.running import BIN, CLEAN, EVERY_TIME, commit, dvc, environment, run, stages_run

pytestmark = pytest.mark.faults

# What a changed key of the relation head reaches: no trial is trained again.
BEHIND = ["evaluate", "experiment", "register", "report", "train"]


def outs(root: Path) -> dict[str, str]:
    """Every file DVC made, with its SHA-256."""
    files = [file for folder in ("data", "models", "report", "results") for file in (root / folder).rglob("*") if file.is_file()]
    return {file.relative_to(root).as_posix(): sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def project(committed: Path) -> Path:
    return committed


# Remotes.


def clone(project: Path, target: Path) -> Path:
    run(project, "git", "clone", "-q", str(project), str(target))
    assert not (target / "data").exists()
    return target


def test_clones_get_the_same_bytes_from_a_local_remote(project: Path, tmp_path: Path) -> None:
    dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    commit(project, "remote")
    dvc(project, "push")
    assert "in sync" in dvc(project, "status", "--cloud")
    second = clone(project, tmp_path / "second")
    dvc(second, "pull")
    assert outs(second) == outs(project)
    assert stages_run(dvc(second, "repro")) == EVERY_TIME
    third = clone(project, tmp_path / "third")
    assert stages_run(dvc(third, "repro", "--pull")) == EVERY_TIME
    assert outs(third) == outs(project)
    # The cache of a clone is its own: nothing above came from the project's.
    assert (third / ".dvc/cache").is_dir()


def test_a_clone_registers_the_pulled_model_in_its_own_mlflow(project: Path, tmp_path: Path) -> None:
    second = clone(project, tmp_path / "second")
    dvc(second, "cache", "dir", "--local", str(project / ".dvc/cache"))
    dvc(second, "checkout")
    assert not (second / "mlflow.db").exists()
    assert stages_run(dvc(second, "repro", "--single-item", "--force", "register")) == ["register"]
    encoder = load("models:/gausscse@champion", f"sqlite:///{second}/mlflow.db")
    # It has the threshold that evaluate found, and tells what its pipeline was.
    per_seed = json.loads((second / "results/evaluate/per_seed.json").read_text(encoding="utf-8"))["main recipe"]
    best = max((numbers["dev"] for numbers in per_seed.values()), key=lambda dev: dev["pr_auc"])
    assert encoder.calibration is not None
    assert (encoder.calibration.threshold, encoder.calibration.accuracy) == (best["threshold"], best["accuracy"])
    score = encoder.relation("A dog runs.", "A dog runs.")["entailment"]
    assert encoder.entails("A dog runs.", "A dog runs.") is (score >= best["threshold"])
    (card,) = (second / "mlartifacts").rglob("artifacts/encoder/README.md")
    assert run(second, "git", "rev-parse", "HEAD").strip() in card.read_text(encoding="utf-8")


# Experiments.


@pytest.fixture
def workspace(project: Path) -> Iterator[Path]:
    """The project, put back afterwards to what is committed."""
    yield project
    run(project, "git", "checkout", "-q", "--", ".")
    dvc(project, "checkout")


def test_a_queued_experiment_runs_what_its_key_reaches_and_no_more(project: Path, queued: str) -> None:
    assert sorted(stages_run(queued)) == BEHIND
    assert "Success" in dvc(project, "queue", "status")
    assert run(project, "git", "status", "--porcelain") == ""
    assert json.loads(dvc(project, "status", "--json")) == CLEAN


def test_what_a_queued_experiment_tracked_and_kept_outlives_its_copy(project: Path, queued: str) -> None:
    assert not list((project / ".dvc/tmp/exps").glob("tmp*"))
    tracker = open_tracker(load_execution(project / "execution.yaml").tracking, project)
    runs = tracker.client.search_runs([tracker.experiment_id], "tags.`gausscse.kind` = 'pipeline'")
    weights = {run.data.params["relation.similarity_weight"]: run.info.status for run in runs}
    assert weights == {"0.25": "FINISHED", "0.5": "FINISHED"}
    # A network of each seed, and its scale for each weight.
    assert len(list((project / ".gausscse/relations").iterdir())) == 2 + 2 * 2
    # The copy has reused the trials of the project.
    assert len(list((project / ".gausscse/trials").iterdir())) == 2


# The registry.


def test_parameters_set_back_name_the_true_champion_and_the_way_back(workspace: Path, queued: str) -> None:
    def registered() -> dict[str, Any]:
        return json.loads((workspace / "results/register.json").read_text(encoding="utf-8"))

    registry = [sys.executable, "-m", "pipeline.cli", "registry"]
    dvc(workspace, "repro")
    old = registered()
    dvc(workspace, "exp", "apply", "hot")
    dvc(workspace, "repro")
    new = registered()["version"]
    run(workspace, *registry, "promote", str(new), "--force", "--reason", "to see")
    run(workspace, "git", "checkout", "-q", "--", ".")
    said = dvc(workspace, "repro")
    assert stages_run(said) == EVERY_TIME
    assert "Stage 'train' is cached" in said
    back = registered()
    assert (old["champion_version"], back["champion_version"], back["version"]) == (old["version"], new, old["version"])
    assert f"is challenger (version {new} is champion)" in said
    assert f"to make it champion again: {back['rollback']}" in said
    page = (workspace / "report/report.md").read_text(encoding="utf-8")
    assert f", the challenger (the champion is version {new}), is " in page
    assert back["rollback"] in page
    # Nothing changed since: the page is left as it is, without being made again.
    assert "report/index.html is up to date" in dvc(workspace, "repro")
    run(workspace, *registry, *back["rollback"].split()[2:-1], "it was bad")
    dvc(workspace, "repro")
    assert (registered()["champion_version"], registered()["rollback"]) == (old["version"], None)
    assert f"version {old['version']}, the champion, is " in (workspace / "report/report.md").read_text(encoding="utf-8")


def test_an_empty_mlflow_gets_what_came_from_the_cache(workspace: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    said = dvc(workspace, "repro", MLFLOW_TRACKING_URI=uri)
    assert stages_run(said) == EVERY_TIME
    client = open_tracker(TrackingParams(uri=uri, experiment="gausscse"), workspace).client
    (experiment,) = [found.experiment_id for found in client.search_experiments() if found.name == "gausscse"]
    runs = client.search_runs([experiment])
    (parent,) = [one for one in runs if one.data.tags["gausscse.kind"] == "pipeline"]
    summary = json.loads((workspace / "results/evaluate/summary.json").read_text(encoding="utf-8"))["main recipe"]
    assert parent.data.metrics["dev.pr_auc"] == pytest.approx(summary["dev"]["pr_auc"]["mean"])
    assert "report" in [file.path for file in client.list_artifacts(parent.info.run_id)]
    trials = [one for one in runs if one.data.tags["gausscse.kind"] == "trial"]
    assert len(trials) == 2
    assert all("dev.pr_auc" in one.data.metrics and one.info.status == "FINISHED" for one in trials)


# A kill.


def test_a_killed_repro_leaves_no_lock_behind(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    process = subprocess.Popen(
        [str(BIN / "dvc"), "repro", "prepare"],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        # Its own group, so that dvc and its stage die together.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any("python -m stages.prepare" in line for line in process.stdout)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert "  prepare:\n" not in (root / "dvc.lock").read_text(encoding="utf-8")
    assert stages_run(dvc(root, "repro", "prepare")) == ["prepare"]
    assert json.loads(dvc(root, "status", "--json", "prepare")) == {}
    # Nor does a list of locks that a kill left half-written, once the project is checked, as `make repro` does first.
    (root / ".dvc/tmp/rwlock").write_text('{"write": {"resu', encoding="utf-8")
    said = subprocess.run([str(BIN / "dvc"), "repro", "prepare"], cwd=root, env=environment(), capture_output=True, text=True)
    assert "RWLock-file" in said.stderr
    subprocess.run([sys.executable, "-m", "pipeline.cli", "check"], cwd=root, env=environment(), check=True)
    assert stages_run(dvc(root, "repro", "prepare")) == []
