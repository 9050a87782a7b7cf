"""Models that start badly, on Ray Serve itself."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
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
from tests.serving.server import PATIENCE, SENTENCES

pytestmark = pytest.mark.faults
NAME = "dies-once"


def status() -> ApplicationStatus:
    return serve.status().applications[NAME].status


def replica() -> psutil.Process:
    (process,) = [
        child
        for child in psutil.Process().children(recursive=True)
        if re.match(rf"ray::ServeReplica:{NAME}:", "".join(child.cmdline()[:1]))
    ]
    return process


def test_a_replica_that_dies_is_replaced_and_one_that_is_late_or_has_other_packages_given_up(operator_model: Path) -> None:
    """Ray Serve calls the application unhealthy until the next one runs, which is no reason to give the model up."""
    write_sums(operator_model)
    killed: list[int] = []

    def dies_once() -> bool:
        # `deploy` asks this between two looks at the status, so it never sees the first replica run.
        if not killed:
            wait_for(lambda: status() == ApplicationStatus.RUNNING, PATIENCE, "the first replica runs")
            process = replica()
            process.kill()
            killed.append(process.pid)
            wait_for(lambda: status() == ApplicationStatus.UNHEALTHY, PATIENCE, "Ray Serve has seen its death", every=0.05)
        return False

    with session(load_execution(ROOT / "execution.yaml").cluster, serving=True) as on:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        scale = replace(Scale.on(on, 1, 1, private=True), patience=PATIENCE)
        handle = deploy(NAME, on.share(operator_model), scale, on.device, None, stopping=dies_once)
        assert [replica().pid] != killed != []
        answers: Any = handle.answers.remote([Job("means", SENTENCES)]).result()
        expected = GaussianEncoder.from_pretrained(operator_model).encode(SENTENCES).mean.numpy()
        assert answers[0].mean == pytest.approx(expected, abs=1e-5)

        with pytest.raises(UserError, match=r"^it did not start within 0 s \(cluster.placement_timeout_s\): is there room"):
            deploy("late", on.share(operator_model), replace(scale, patience=0.0), on.device, None, stopping=lambda: False)
        # As on a node that joined a cluster later, with other packages.
        with pytest.raises(
            UserError, match=r"^its replicas do not start: .* has torch .*, this project was sent with 2\.1\.0; use"
        ):
            deploy("other", on.share(operator_model), scale, on.device, {"torch": "2.1.0"}, stopping=lambda: False)
        wait_for(lambda: list(serve.status().applications) == [NAME], PATIENCE, "both are removed again")
    assert not ray.is_initialized()
