"""Failures during the start of a model, on Ray Serve itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gates import wait_for
from ray import serve

from pipeline.cluster.session import session
from pipeline.config.load import load_execution
from pipeline.serving.replica import Scale, deploy
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.serving.server import PATIENCE

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def scale() -> Iterator[Scale]:
    """Of one replica on a private Ray, whose Ray Serve runs."""
    with session(load_execution(ROOT / "execution.yaml").cluster) as on:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        yield replace(Scale.on(on, 1, 1, private=True), patience=PATIENCE)


@pytest.fixture
def model(operator_model: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(operator_model, tmp_path / "model")
    write_sums(folder)
    return folder


def goes_on() -> bool:
    return False


def test_a_model_whose_replicas_do_not_start_is_given_up(scale: Scale, model: Path) -> None:
    next(model.rglob("model.safetensors")).unlink()
    with pytest.raises(UserError, match=r"^its replicas do not start: .*model\.safetensors"):
        deploy("damaged", str(model), scale, "cpu", None, stopping=goes_on)
    wait_for(lambda: not serve.status().applications, PATIENCE, "it is removed")


def test_a_start_that_takes_too_long_names_its_limit(scale: Scale, model: Path) -> None:
    late = replace(scale, patience=0.0)
    said = r"^it did not start within 0 s \(cluster\.placement_timeout_s in execution\.yaml\): .*; is there room"
    with pytest.raises(UserError, match=said):
        deploy("late", str(model), late, "cpu", None, stopping=goes_on)
    wait_for(lambda: not serve.status().applications, PATIENCE, "it is removed")


def test_a_replica_does_not_start_on_a_node_with_other_packages(scale: Scale, model: Path) -> None:
    """Such a node may have joined after the server had asked all nodes."""
    said = r"^its replicas do not start: node .* of the cluster has torch .*, this project was sent with 2\.1\.0; use one image"
    with pytest.raises(UserError, match=said):
        deploy("other", str(model), scale, "cpu", {"torch": "2.1.0"}, stopping=goes_on)
    wait_for(lambda: not serve.status().applications, PATIENCE, "it is removed")
