"""compose.yaml and the Dockerfile, as far as they can be checked without Docker: against the programs they start."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click import Command
from jsonschema import Draft7Validator
from mlflow.cli import server
from ray.scripts.scripts import start

from pipeline.cli import serve
from pipeline.config.load import load_params
from pipeline.serving.limits import loopback
from tests.conftest import ROOT
from tests.deploy.composed import FOLDER, composed, example, shared

ENV = example()
COMPOSE = composed(ENV)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")


def test_the_file_is_one_that_compose_takes() -> None:
    schema = Draft7Validator(json.loads(shared("compose-schema.json").read_text(encoding="utf-8")))
    for env in (ENV, {**ENV, **dict.fromkeys(("WORKERS", "WORKER_CPUS", "WORKER_MEMORY", "SERVE_CPUS", "SERVE_MEMORY"), "")}):
        assert [error.message for error in schema.iter_errors(composed(env))] == []
    wrong = composed(ENV)
    wrong["services"]["head"]["cpu"] = 2
    assert list(schema.iter_errors(wrong))


PROGRAMS: dict[str, Command] = {**dict.fromkeys(("head", "worker", "gpu-worker"), start), "mlflow": server}


@pytest.mark.parametrize("service", PROGRAMS)
def test_a_service_starts_its_program_with_options_that_it_has(service: str) -> None:
    program, command, *options = SERVICES[service]["command"]
    assert (program, command) == ("mlflow" if service == "mlflow" else "ray", PROGRAMS[service].name)
    # click refuses what it does not know, and values that are none; nothing is started.
    assert PROGRAMS[service].make_context(f"{program} {command}", options, resilient_parsing=False).params


def test_a_container_gets_the_secrets_it_needs_and_no_others() -> None:
    asked = set(re.findall(r"\$\{(\w+):\?", (FOLDER / "compose.yaml").read_text(encoding="utf-8")))
    of_value = {ENV[name]: name for name in asked}
    s3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    got = {
        name: {of_value[v] for v in service.get("environment", {}).values() if v in of_value}
        for name, service in SERVICES.items()
    }
    assert got == {
        "postgres": {"POSTGRES_PASSWORD"},
        "s3": s3,
        # Its artifacts are in a volume: it needs no key of the store, and what has one cannot change a registered model.
        "mlflow": {"POSTGRES_PASSWORD", "MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"},
        "accounts": {*s3, "MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_TRACKING_PASSWORD"},
        "head": {*s3, "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD"},
        "worker": {*s3, "RAY_AUTH_TOKEN"},
        "gpu-worker": {*s3, "RAY_AUTH_TOKEN"},
        # MLflow's server sends it the files of the models.
        "serve": {"MLFLOW_TRACKING_PASSWORD", "GAUSSCSE_SERVE_TOKEN"},
    }
    # None comes another way.
    assert not any("env_file" in service or "secrets" in service for service in SERVICES.values())
    assert "secrets" not in COMPOSE


def test_the_server_is_asked_at_its_port_and_ends_after_its_last_request() -> None:
    service = SERVICES["serve"]
    program, command, *options = service["command"]
    assert (program, command) == ("gausscse", "serve")
    asked = serve._parser().parse_args(options)
    # The model's name is that of the checkout's params.yaml; MLflow is the service.
    assert asked.name == load_params(ROOT / "params.yaml").register_.name
    alias = SERVICES["mlflow"]["networks"]["default"]["aliases"][0]
    assert service["environment"]["MLFLOW_TRACKING_URI"] == f"http://{alias}:5000"
    assert not loopback(asked.host)
    assert service["ports"] == [f"127.0.0.1:{asked.port}:{asked.port}"]
    assert service["healthcheck"]["test"][-1] == f"http://localhost:{asked.port}/ready"
    assert int(service["stop_grace_period"].removesuffix("s")) >= asked.max_seconds + 20
    # Without limits its Ray would start a process for each core of the machine.
    assert (service["cpus"], service["mem_limit"]) == (2, "6g")
