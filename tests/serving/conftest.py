"""A registry with models that have canary pairs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.tracking.server import Tracker
from tests.registry.conftest import lab, run_id, tracker
from tests.registry.lab import Lab
from tests.serving.server import Registry

__all__ = ["lab", "registry", "run_id", "tracker"]


@pytest.fixture(scope="module")
def registry(lab: Lab, tracker: Tracker, run_id: str, request: pytest.FixtureRequest) -> Iterator[Registry]:
    """A registered model under a name that no other module uses, still without versions."""
    yield Registry(lab, tracker, run_id, request.module.__name__.rpartition(".")[2])
