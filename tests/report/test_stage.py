"""Stage report as it is run: `python -m stages.report` in a project folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from store import make_store, random_stores

from pipeline.config.execution import TrackingParams
from pipeline.identity.digests import BACKBONE
from pipeline.tracking.mlflow_runs import DIGEST_TAG
from pipeline.tracking.server import open_tracker
from pipeline.utils.atomic_io import write_json
from tests.report.results import write_results


def run_stage(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.run([sys.executable, "-m", "stages.report"], cwd=root, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    write_results(root)
    random_stores(root / "data/tokens")
    make_store(root / "data/tokens/tests", [[2, 7, 3]], pairs={"snli_test": [(0, 0, 0)]})
    write_json(root / BACKBONE, {"digest": "b" * 64, "files": {}})
    for name in ("params.yaml", "execution.yaml"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture(scope="module")
def done(project: Path) -> subprocess.CompletedProcess[str]:
    return run_stage(project)


def test_the_report_and_the_curves_become_artifacts_of_the_pipeline_run(
    project: Path, done: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout == "report: report/index.html\n"
    assert {file.name for file in (project / "report").iterdir()} == {"index.html", "report.md", "curves"}
    tracker = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project)
    (run,) = tracker.client.search_runs([tracker.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags[DIGEST_TAG]
    kept = Path(tracker.client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    files = ["report/index.html", "report/report.md", "results/tune/curves.csv", "results/train/curves.csv"]
    reported = ("similarity", "direction_by_length", "variance_by_length", "calibration")
    files += [f"report/curves/{name}.csv" for name in reported]
    files += [f"results/{stage}/pr_curves.csv" for stage in ("evaluate", "experiments")]
    for name in (*files, "results/experiments/curves.csv"):
        assert (kept / name).read_bytes() == (project / name).read_bytes(), name


def test_what_is_missing_is_told_in_one_line_and_the_old_report_stays(
    project: Path, done: subprocess.CompletedProcess[str]
) -> None:
    before = {file: file.read_bytes() for file in (project / "report").rglob("*.*")}
    missing = project / "results/experiments/scores/ent/dev/seed-2.parquet"
    kept = missing.read_bytes()
    missing.unlink()
    try:
        failed = run_stage(project)
    finally:
        missing.write_bytes(kept)
    assert failed.returncode == 2
    assert failed.stderr == f"error: {missing.relative_to(project)}: no such file; run `dvc repro` to make it\n"
    assert {file: file.read_bytes() for file in (project / "report").rglob("*.*")} == before
    assert not [file.name for file in project.iterdir() if file.name.startswith(".report")]
