# pyright: reportUnknownMemberType=false
"""Tracking on a real MLflow (sqlite): runs found again, nothing logged twice, nothing left RUNNING, clear refusals."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.data import get_source
from mlflow.tracking import MlflowClient

from pipeline.config.execution import TrackingParams
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError
from tests.tracking.runs import HISTORY, child, outcome, points, trial


def status(tracker: Tracker, run_id: str) -> str:
    return tracker.client.get_run(run_id).info.status


def commanded(error: UserError) -> str:
    """The command that a message says to run."""
    return str(error).split("`")[1]


def test_a_deleted_experiment_is_restored_by_the_printed_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    params = TrackingParams(uri=None, experiment="test")
    tracker = server.open_tracker(params, tmp_path)
    tracker.client.delete_experiment(tracker.experiment_id)
    with pytest.raises(UserError, match="mlflow experiments restore") as meanwhile:
        mlflow_runs.pipeline_run(tracker, "digest", {}, {})
    with pytest.raises(UserError, match="mlflow experiments restore") as before:
        server.open_tracker(params, tmp_path)
    assert commanded(before.value) == commanded(meanwhile.value)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(commanded(before.value), shell=True, check=True, env={**os.environ, "PATH": path}, capture_output=True)
    assert server.open_tracker(params, tmp_path) == tracker


def test_an_older_database_names_the_command_that_upgrades_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    params = TrackingParams(uri=None, experiment="test")
    server.open_tracker(params, tmp_path)
    # All tables are there, and a migration that only changes columns is missing. MLflow looks only when it opens a database.
    older = tmp_path / "older"
    older.mkdir()
    (tmp_path / "mlflow.db").rename(older / "mlflow.db")
    with sqlite3.connect(older / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '1b5f0d9ad7c1'")
    with pytest.raises(UserError, match=r"out-of-date database schema \(found version 1b5f0d9ad7c1") as caught:
        server.open_tracker(params, older)
    assert commanded(caught.value) == f"mlflow db upgrade 'sqlite:///{older / 'mlflow.db'}'"
    assert "\n" not in str(caught.value)


def test_parent_is_found_again_by_its_digest(tracker: Tracker, parent: str, request: pytest.FixtureRequest) -> None:
    assert mlflow_runs.pipeline_run(tracker, request.node.name, {}, {}) == parent
    assert mlflow_runs.pipeline_run(tracker, "another", {}, {}) != parent
    run = tracker.client.get_run(parent)
    assert run.data.params == {"train.epochs": "1"}
    assert run.data.tags["who"] == "test"
    # A child carries the parent's id and must not be taken for a parent.
    child = mlflow_runs.trial_run(tracker, parent, trial())
    mlflow_runs.tag(tracker, child, {mlflow_runs.DIGEST_TAG: request.node.name})
    assert mlflow_runs.pipeline_run(tracker, request.node.name, {}, {}) == parent
    # What the digest does not cover may have changed, such as the folder of the same data.
    assert mlflow_runs.pipeline_run(tracker, request.node.name, {"train.epochs": 2, "data.root": "b"}, {}) == parent
    assert tracker.client.get_run(parent).data.params == {"train.epochs": "1", "data.root": "b"}


def test_a_trial_has_one_run_per_parent(tracker: Tracker, parent: str) -> None:
    first, second = (mlflow_runs.trial_run(tracker, parent, trial(seed)) for seed in (1, 2))
    assert first != second
    assert mlflow_runs.trial_run(tracker, parent, trial(1)) == first
    run = tracker.client.get_run(first)
    assert (run.data.tags["mlflow.parentRunId"], run.data.tags["gausscse.trial"]) == (parent, trial(1).digest)
    assert run.data.params["learning_rate"] == "0.0001"
    other = mlflow_runs.pipeline_run(tracker, "another", {}, {})
    assert mlflow_runs.trial_run(tracker, other, trial(1)) != first


def test_repeated_progress_and_final_numbers_add_no_points(tracker: Tracker, parent: str) -> None:
    run_id = mlflow_runs.trial_run(tracker, parent, trial())
    history = [{"step": s, "loss": 1.0 / s, "learning_rate": 0.1, "score": s if s % 2 else None} for s in range(1, 500)]
    for part in (history, history[:300], history):
        mlflow_runs.log_progress(tracker, run_id, part, "dev_pr_auc")
    # More metrics than one call of MLflow takes.
    for key, steps in (("loss", range(1, 500)), ("dev_pr_auc", range(1, 500, 2))):
        assert [m.step for m in tracker.client.get_metric_history(run_id, key)] == list(steps)
    for value in (3.0, 3.0, 2.0, 2.0):
        mlflow_runs.log_metrics(tracker, run_id, {"dev.pr_auc": value})
    assert [m.value for m in tracker.client.get_metric_history(run_id, "dev.pr_auc")] == [3.0, 2.0]
    assert tracker.client.get_run(run_id).data.metrics["dev.pr_auc"] == 2.0


def test_a_run_cut_short_by_a_kill_is_completed(tracker: Tracker, parent: str) -> None:
    # Between create_run and the parameters.
    tags = {mlflow_runs.PARENT_TAG: parent, mlflow_runs.TRIAL_TAG: trial(7).digest}
    left = tracker.client.create_run(tracker.experiment_id, tags=tags).info.run_id
    assert mlflow_runs.trial_run(tracker, parent, trial(7)) == left
    assert tracker.client.get_run(left).data.params["learning_rate"] == "0.0001"
    # And one that failed first says so no longer.
    mlflow_runs.fail_trial(tracker, left, "it broke")
    assert mlflow_runs.ensure_trial(tracker, parent, trial(7), outcome(trial(7))) == left
    run = tracker.client.get_run(left)
    assert run.info.status == "FINISHED"
    assert "gausscse.failure" not in run.data.tags


def profile_json(folder: Path, dev_sum: str = "d") -> Path:
    """What `log_data` reads of a profile."""
    columns = [[name, "string"] for name in ("premise", "hypothesis", "label", "source")]
    sums = {"train/triplets": "a", "dev/dev": dev_sum, "tests/some": "c", "tests/graded.sts": "e"}
    files = {f"{name}.parquet": {"sha256": s * 64, "rows": 3, "columns": columns} for name, s in sums.items()}
    path = folder / "profile.json"
    write_json(path, {"files": files})
    return path


def inputs(tracker: Tracker, run_id: str) -> dict[str, tuple[str, str]]:
    """Name → (context, digest) of the data set inputs; each name once."""
    given = tracker.client.get_run(run_id).inputs
    assert given is not None
    found = [(one.dataset.name, (one.tags[0].value, one.dataset.digest)) for one in given.dataset_inputs]
    assert len(found) == len(dict(found))
    return dict(found)


TRAINED_ON = {"train": ("training", "a" * 36), "dev": ("validation", "d" * 36)}
TESTED_ON = {"some": ("testing", "c" * 36), "graded.sts": ("testing", "e" * 36)}


def test_data_sets_are_inputs_once(tracker: Tracker, parent: str, tmp_path: Path) -> None:
    # A run from before its parent had inputs gets them later.
    assert inputs(tracker, mlflow_runs.trial_run(tracker, parent, trial())) == {}
    for _ in range(2):
        mlflow_runs.log_data(tracker, parent, profile_json(tmp_path))
        run_id = mlflow_runs.trial_run(tracker, parent, trial())
        assert inputs(tracker, parent) == TRAINED_ON | TESTED_ON
        assert inputs(tracker, run_id) == TRAINED_ON
    given = tracker.client.get_run(parent).inputs
    assert given is not None
    dev = next(one.dataset for one in given.dataset_inputs if one.dataset.name == "dev")
    # MLflow itself can resolve it.
    assert get_source(dev).to_dict()["uri"] == "data/prepared/dev/dev.parquet"
    assert (json.loads(dev.source)["sha256"], json.loads(dev.profile or "")) == ("d" * 64, {"num_rows": 3})
    assert [artifact.path for artifact in tracker.client.list_artifacts(parent)] == ["profile.json"]
    reused = mlflow_runs.ensure_trial(tracker, parent, trial(2), outcome(trial(2)))
    assert inputs(tracker, reused) == TRAINED_ON


def test_a_reused_trial_is_logged_once_from_its_history(tracker: Tracker, parent: str) -> None:
    # A process was killed after the trial was finished on disk, before all of it was in MLflow.
    run_id = mlflow_runs.trial_run(tracker, parent, trial())
    mlflow_runs.log_progress(tracker, run_id, HISTORY[:2], "dev_pr_auc")
    mlflow_runs.end_unfinished(tracker, parent, "KILLED")
    run_id = mlflow_runs.ensure_trial(tracker, parent, trial(), outcome(trial()))
    assert mlflow_runs.ensure_trial(tracker, parent, trial(), outcome(trial())) == run_id
    assert child(tracker, parent).info.run_id == run_id
    assert [step for step, _ in points(tracker, run_id, "loss")] == [10, 20, 30]
    assert [step for step, _ in points(tracker, run_id, "dev_pr_auc")] == [20, 30]
    run = tracker.client.get_run(run_id)
    assert (run.info.status, run.data.tags["gausscse.how"]) == ("FINISHED", "reused")


def test_stage_that_ends_well(tracker: Tracker, parent: str) -> None:
    with mlflow_runs.stage_of(tracker, parent):
        mlflow_runs.ensure_trial(tracker, parent, trial(1), outcome(trial(1)))
        pruned = mlflow_runs.trial_run(tracker, parent, trial(2))
    # A run that nothing ended has no model.
    assert (status(tracker, parent), status(tracker, pruned)) == ("FINISHED", "FAILED")


@pytest.mark.parametrize(("error", "expected"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_no_run_is_left_running_when_a_stage_fails(
    tracker: Tracker, parent: str, error: type[BaseException], expected: str
) -> None:
    done = mlflow_runs.ensure_trial(tracker, parent, trial(9), outcome(trial(9)))
    child = mlflow_runs.trial_run(tracker, parent, trial())
    with pytest.raises(error), mlflow_runs.stage_of(tracker, parent):
        assert mlflow_runs.trial_run(tracker, parent, trial()) == child
        raise error
    assert [status(tracker, run_id) for run_id in (parent, child, done)] == [expected, expected, "FINISHED"]


def test_run_left_by_a_killed_process_is_ended_by_the_next_stage(tracker: Tracker, parent: str) -> None:
    left = mlflow_runs.trial_run(tracker, parent, trial())
    with mlflow_runs.stage_of(tracker, parent):
        assert status(tracker, left) == "KILLED"
    # Trained after all: the same run takes it up again.
    assert mlflow_runs.ensure_trial(tracker, parent, trial(), outcome(trial())) == left
    assert status(tracker, left) == "FINISHED"


def test_unreachable_server_and_wrong_file_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        server.open_tracker(TrackingParams(uri="http://bob:s3cret@127.0.0.1:9", experiment="x"), tmp_path)
    assert time.monotonic() - began < 20
    message = str(caught.value)
    assert message.startswith("MLflow at http://127.0.0.1:9: ")
    assert "tracking.uri" in message
    assert not [secret for secret in ("\n", "s3cret", "bob") if secret in message]
    # Only the first contact is impatient.
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
    (tmp_path / "mlflow.db").write_text("not a database" * 100)
    with pytest.raises(UserError, match="file is not a database"):
        server.open_tracker(TrackingParams(uri=None, experiment="x"), tmp_path)


def test_server_that_goes_away_does_not_hide_why_the_stage_failed(
    tracker: Tracker, parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> int:
        raise UserError("MLflow is gone")

    with pytest.raises(ValueError, match="the reason"), mlflow_runs.stage_of(tracker, parent):
        monkeypatch.setattr(mlflow_runs, "end_unfinished", gone)
        raise ValueError("the reason")


def test_a_full_disk_is_one_line(tracker: Tracker, parent: str, caplog: pytest.LogCaptureFixture) -> None:
    size = Path(tracker.uri.removeprefix("sqlite:///")).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, but of one's own making: no file may be larger than the database is now.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(UserError, match=r"MLflow at sqlite:.*: (disk I/O error|database or disk is full); check") as caught:
            mlflow_runs.log_metrics(tracker, parent, {f"metric.{i}": float(i) for i in range(3000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in caplog.text
    mlflow_runs.log_metrics(tracker, parent, {"afterwards": 1.0})
    assert tracker.client.get_run(parent).data.metrics["afterwards"] == 1.0


def test_every_run_is_found_however_many_there_are(tracker: Tracker, parent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        mlflow_runs.trial_run(tracker, parent, trial(seed), f"seed {seed}")
    whole = MlflowClient.search_runs

    def two(client: MlflowClient, ids: list[str], where: str, *, max_results: int, page_token: str | None) -> Any:
        assert max_results >= 2
        return whole(client, ids, where, max_results=2, page_token=page_token)

    monkeypatch.setattr(MlflowClient, "search_runs", two)
    mlflow_runs.end_unfinished(tracker, parent, "KILLED")
    monkeypatch.undo()
    runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert [run.info.status for run in runs] == ["KILLED"] * 5
