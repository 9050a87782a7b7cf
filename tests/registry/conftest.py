"""The small project, and where its models are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.registry.champions import Registration
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import Tracker, open_tracker
from tests.registry.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Prepared and tokenized once for all."""
    return Lab.made(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def tracker(lab: Lab) -> Iterator[Tracker]:
    """MLflow in the project's own database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield open_tracker(TrackingParams(uri=None, experiment="test"), lab.root)


@pytest.fixture(scope="module")
def run_id(tracker: Tracker) -> str:
    return pipeline_run(tracker, "a" * 64, {}, {})


@pytest.fixture
def register(lab: Lab, tracker: Tracker, run_id: str, request: pytest.FixtureRequest) -> Callable[..., Registration]:
    """Register an encoder under a model name that no other test uses."""
    name = request.node.name.removeprefix("test_")

    def call(encoder: Path, score: float = 50.0, run: str = run_id, **tags: str) -> Registration:
        return lab.register(tracker, name, encoder, run, score, **tags)

    return call
