"""A registry with models that have canary pairs, and a model with operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator_encoder import save_operator_model
from tests.serving.server import SENTENCES, Registry


@pytest.fixture(scope="module")
def registry(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Registry]:
    """A registered model of its own for each module, still without versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        name = request.module.__name__.rpartition(".")[2]
        yield Registry.made(tmp_path_factory.mktemp("project"), tiny_backbone, name)


@pytest.fixture(scope="module")
def operator_model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with operators and a decoder."""
    return save_operator_model(tiny_backbone, tmp_path_factory.mktemp("model") / "model", SENTENCES)
