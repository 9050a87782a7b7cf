"""An MLflow server that answers 500 for a while, during training and at its end: a real server behind a proxy that fails.

The outages last 6 seconds, or GAUSSCSE_OUTAGES.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.forwarder import watched
from pipeline.tracking.server import Tracker
from pipeline.trials.progress_log import ProgressLog
from tests.faulty_s3 import FaultyS3, faulty
from tests.gates import wait_for
from tests.registry.servers import answers, free_port
from tests.tracking.runs import child, finish, points, progress, trial
from tests.trial_of import folder_at

pytestmark = pytest.mark.faults

SECONDS = float(os.environ.get("GAUSSCSE_OUTAGES", "6"))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyS3]:
    folder, address = tmp_path_factory.mktemp("server"), f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", address.split(":")[1], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*command, "--allowed-hosts", "*"], cwd=folder, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            answers(f"http://{address}", folder / "log")
            with faulty(f"s3://mlflow?endpoint_override={address}") as before:
                yield before
        finally:
            process.terminate()


@pytest.fixture
def tracker(proxy: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    return server.open_tracker(TrackingParams(uri=f"http://{proxy.address}", experiment="test"), tmp_path)


def test_every_step_arrives_once_though_the_server_answers_500(proxy: FaultyS3, tracker: Tracker, tmp_path: Path) -> None:
    """Before training, in training and at its end."""
    proxy.fail("500", SECONDS)
    parent = mlflow_runs.pipeline_run(tracker, "digest", {"train.epochs": 1}, {"who": "test"})
    log = ProgressLog("t", tmp_path)
    with watched([(folder_at(trial(), tmp_path), "t")], tracker, parent):
        log(progress(10))
        before = proxy.disturbed
        proxy.fail("500", SECONDS)
        log(progress(20, 0.7))
        wait_for(lambda: proxy.disturbed > before, 60, "a request meets the fault")
        wait_for(lambda: proxy.over, 60, "the server is back")
        before = proxy.disturbed
        proxy.fail("500", SECONDS, match="POST")
        log(progress(30, 0.8))
        finish(tmp_path, trial())
    assert proxy.disturbed > before
    run = child(tracker, parent)
    assert points(tracker, run.info.run_id, "loss") == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    assert points(tracker, run.info.run_id, "dev_pr_auc") == [(20, 0.7), (30, 0.8)]
    assert run.info.status == "FINISHED"
