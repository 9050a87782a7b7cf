"""Fixtures: a real MLflow in sqlite, and a pipeline run in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield server.open_tracker(TrackingParams(uri=None, experiment="test"), tmp_path_factory.mktemp("tracking"))


@pytest.fixture
def parent(tracker: Tracker, request: pytest.FixtureRequest) -> str:
    return mlflow_runs.pipeline_run(tracker, request.node.name, {"train.epochs": 1}, {"who": "test"})
