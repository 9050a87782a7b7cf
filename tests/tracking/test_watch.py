"""What trials write while they run reaches a real MLflow once, whatever becomes of it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline import tracking
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.mirror import Mirror
from pipeline.progress import ProgressLog
from pipeline.tracking import Tracker
from pipeline.trial import FAILURE
from pipeline.watch import watched
from tests.tracking.runs import child, finish, points, progress, trial


def test_watched_progress_is_logged_once_at_its_steps(
    tracker: Tracker, parent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ProgressLog("t", tmp_path)
    with watched([(trial(), "t", Mirror(tmp_path))], tracker, parent):
        for each in (progress(10), progress(20, 0.7)):
            log(each)
        log.note("latest/ is damaged")
        for each in (progress(20, 0.7), progress(30, 0.8)):
            log(each)
        finish(tmp_path, trial())
    run = child(tracker, parent)
    assert points(tracker, run.info.run_id, "loss") == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    assert points(tracker, run.info.run_id, "dev_pr_auc") == [(20, 0.7), (30, 0.8)]
    assert points(tracker, run.info.run_id, "triplets_per_second") == [(10, 100.0), (20, 100.0), (30, 100.0)]
    assert points(tracker, run.info.run_id, "best_dev_pr_auc") == [(30, 0.8)]
    assert (run.info.status, run.data.tags["gausscse.how"]) == ("FINISHED", "trained by 2 workers on cpu")
    told = capsys.readouterr()
    assert told.out.count("step 20/30") == 1
    assert told.err == "warning: t: latest/ is damaged\n"


def test_a_watched_trial_that_fails_says_why(tracker: Tracker, parent: str, tmp_path: Path) -> None:
    with watched([(trial(), "t", Mirror(tmp_path))], tracker, parent):
        ProgressLog("t", tmp_path)(progress(10))
        write_json(tmp_path / FAILURE, {"reason": "the loss is nan"})
    run = child(tracker, parent)
    assert (run.info.status, run.data.tags["gausscse.failure"]) == ("FAILED", "the loss is nan")


def test_metrics_survive_a_server_that_is_away(
    tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = Tracker("http://127.0.0.1:9", tracker.experiment_id)
    with (
        pytest.raises(UserError, match=r"MLflow at http://127\.0\.0\.1:9"),
        watched([(trial(), "t", Mirror(tmp_path))], away, parent),
    ):
        ProgressLog("t", tmp_path)(progress(10))
        ProgressLog("t", tmp_path)(progress(20, 0.7))
    # The next attempt finds the records where the first left them.
    with watched([(trial(), "t", Mirror(tmp_path))], tracker, parent):
        ProgressLog("t", tmp_path)(progress(30, 0.8))
        finish(tmp_path, trial())
    assert [step for step, _ in points(tracker, child(tracker, parent).info.run_id, "loss")] == [10, 20, 30]


def test_who_presses_ctrl_c_does_not_wait_for_a_server_that_is_away(
    tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    retries: list[str | None] = []

    def away(*_: Any) -> str:
        retries.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        raise UserError("MLflow is away")

    monkeypatch.setattr(tracking, "trial_run", away)
    with pytest.raises(KeyboardInterrupt), watched([(trial(), "t", Mirror(tmp_path))], tracker, parent):
        ProgressLog("t", tmp_path)(progress(10, 0.7))
        raise KeyboardInterrupt
    assert retries.pop() == "2"
    retries.clear()
    # What the block did not interrupt is sent with MLflow's own patience.
    with pytest.raises(UserError, match="MLflow is away"), watched([(trial(), "t", Mirror(tmp_path))], tracker, parent):
        ProgressLog("t", tmp_path)(progress(20, 0.7))
    assert set(retries) == {None}
