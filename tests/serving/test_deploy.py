"""Failures during the start of a model, on Ray Serve itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from gates import wait_for
from ray import serve
from ray.serve.schema import ApplicationStatus

from pipeline.cluster.session import session
from pipeline.config.load import load_execution
from pipeline.models.encoder import GaussianEncoder
from pipeline.serving.replica import Job, Scale, deploy
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.serving.server import PATIENCE, SENTENCES, replicas_under

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def scale() -> Iterator[Scale]:
    """Of one replica on a private Ray, whose Ray Serve runs."""
    with session(load_execution(ROOT / "execution.yaml").cluster, serving=True) as on:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        yield replace(Scale.on(on, 1, 1, private=True), patience=PATIENCE)


@pytest.fixture
def model(operator_model: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(operator_model, tmp_path / "model")
    write_sums(folder)
    return folder


def goes_on() -> bool:
    return False


def status(name: str) -> ApplicationStatus:
    return serve.status().applications[name].status


def replicas(name: str) -> list[psutil.Process]:
    return replicas_under(psutil.Process(), name)


def dying(name: str, killed: list[int], before: Callable[[], object] = lambda: None) -> Callable[[], bool]:
    """Kills the first replica once it runs. `deploy` asks this between two looks at the status, so it never sees it run."""

    def dies_once() -> bool:
        if not killed:
            wait_for(lambda: status(name) == ApplicationStatus.RUNNING, PATIENCE, "the first replica runs")
            # While Ray changes a process's name, the process may seem to have none.
            wait_for(lambda: len(replicas(name)) == 1, PATIENCE, "its process has its name")
            before()
            for process in replicas(name):
                killed.append(process.pid)
                process.kill()
            wait_for(lambda: status(name) == ApplicationStatus.UNHEALTHY, PATIENCE, "Ray Serve has seen its death")
        return False

    return dies_once


def test_a_replica_that_dies_right_after_its_start_is_replaced(scale: Scale, model: Path) -> None:
    """Ray Serve calls the application unhealthy until the next replica runs; the model is not given up for that."""
    killed: list[int] = []
    handle = deploy("dies-once", str(model), scale, "cpu", None, stopping=dying("dies-once", killed))
    assert len(killed) == 1
    assert killed[0] not in [process.pid for process in replicas("dies-once")]
    ask: Any = handle.answers
    answers = ask.remote([Job("means", SENTENCES)]).result(timeout_s=PATIENCE)
    assert answers[0].mean == pytest.approx(GaussianEncoder.from_pretrained(model).encode(SENTENCES).mean.numpy(), abs=1e-5)
    # Its thread would go on sending numbers, and log an error once Ray has ended.
    ask.shutdown()
    serve.delete("dies-once")


def test_a_model_is_given_up_if_no_replica_starts_after_a_death(scale: Scale, model: Path) -> None:
    weights = next(model.rglob("model.safetensors"))
    with pytest.raises(UserError, match=r"^its replicas do not start: .*model\.safetensors"):
        deploy("damaged", str(model), scale, "cpu", None, stopping=dying("damaged", [], weights.unlink))
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
