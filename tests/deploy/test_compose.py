"""compose.yaml and the Dockerfile, as far as they can be checked without Docker: against the programs they start."""

from __future__ import annotations

import configparser
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click import Command
from jsonschema import Draft7Validator
from mlflow.cli import server
from ray.scripts.scripts import start
from sqlalchemy import make_url

from pipeline.cli import serve
from pipeline.config.load import load_params
from pipeline.serving.limits import loopback
from tests.conftest import ROOT
from tests.deploy.composed import FOLDER, composed, example

ENV = example()
COMPOSE = composed(ENV)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")


def test_the_file_is_one_that_compose_takes() -> None:
    shared = Path(os.environ.get("GAUSSCSE_DATA") or ROOT / "../shared/data").resolve()
    file = shared / "kuberay/compose-schema.json"
    if not file.is_file():
        pytest.skip(f"Compose's schema is not in {file}: set GAUSSCSE_DATA")
    schema = Draft7Validator(json.loads(file.read_text(encoding="utf-8")))
    for env in (ENV, {**ENV, **dict.fromkeys(("WORKERS", "WORKER_CPUS", "WORKER_MEMORY", "SERVE_CPUS", "SERVE_MEMORY"), "")}):
        assert [error.message for error in schema.iter_errors(composed(env))] == []
    wrong = composed(ENV)
    wrong["services"]["head"]["cpu"] = 2
    assert list(schema.iter_errors(wrong))


@pytest.mark.parametrize(
    ("service", "program", "command"),
    [
        ("head", ["ray", "start"], start),
        ("worker", ["ray", "start"], start),
        ("gpu-worker", ["ray", "start"], start),
        ("mlflow", ["mlflow", "server"], server),
    ],
)
def test_a_service_starts_its_program_with_options_that_it_has(service: str, program: list[str], command: Command) -> None:
    arguments = SERVICES[service]["command"]
    assert arguments[:2] == program
    # click refuses what it does not know, and values that are none; nothing is started.
    parsed = command.make_context(" ".join(program), arguments[2:], resilient_parsing=False)
    assert parsed.params


def test_services_wait_for_what_they_need_and_that_exists() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert not SERVICES[other].get("profiles")
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        for config in service.get("configs", []):
            assert (FOLDER / COMPOSE["configs"][config["source"]]["file"]).is_file()


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


def test_ray_counts_the_cores_that_its_container_may_use() -> None:
    for name in ("worker", "gpu-worker"):
        assert f"--num-cpus={SERVICES[name]['cpus']}" in SERVICES[name]["command"]
        assert composed({**ENV, "WORKER_CPUS": "7"})["services"][name]["cpus"] == 7
    assert "--num-cpus=0" in SERVICES["head"]["command"]
    for name in ("head", "worker", "gpu-worker"):
        assert {"cpus", "mem_limit"} <= set(SERVICES[name])
        # Or it takes a third of the machine's memory, and says that /dev/shm is too small for it.
        (size,) = [int(one.partition("=")[2]) for one in SERVICES[name]["command"] if one.startswith("--object-store-memory=")]
        assert SERVICES[name]["shm_size"] == "1gb" and size < 2**30


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
    assert service["shm_size"] == "1gb"


def test_mlflow_and_the_storage_have_one_name_inside_and_outside() -> None:
    names = {
        name: service["networks"]["default"]["aliases"][0] + ":" + service["ports"][0].rpartition(":")[2]
        for name, service in SERVICES.items()
        if "networks" in service
    }
    assert names == {"s3": "s3.gausscse.internal:7070", "mlflow": "mlflow.gausscse.internal:5000"}
    # Outside by a line of /etc/hosts, at the same ports.
    for name, address in names.items():
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{address.partition(':')[2]}:{address.partition(':')[2]}"]
    accounts = (FOLDER / "accounts.py").read_text(encoding="utf-8")
    assert all(f'"http://{address}"' in accounts for address in names.values())
    allowed = next(one for one in SERVICES["mlflow"]["command"] if one.startswith("--allowed-hosts="))
    assert names["mlflow"] in allowed
    assert not any(word in allowed for word in ("*", "0.0.0.0"))


def test_one_image_has_all_that_every_role_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert f"ARG UV_VERSION={re.search(r'UV_VERSION := (.*)', (ROOT / 'Makefile').read_text(encoding='utf-8'))[1]}" in DOCKERFILE  # type: ignore[index]
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    assert DOCKERFILE.count("USER gausscse") == 2
    # Who is not root writes only into volumes that the image has a folder of his own for.
    (artifacts,) = (volume.partition(":")[2] for volume in SERVICES["mlflow"]["volumes"])
    assert f"chown gausscse {artifacts}" in DOCKERFILE


def test_runs_and_users_are_in_one_database_by_the_installed_driver() -> None:
    uri = next(one.partition("=")[2] for one in SERVICES["mlflow"]["command"] if one.startswith("--backend-store-uri="))
    # SQLAlchemy 2.1 takes another one where none is named.
    driver = make_url(uri).get_driver_name()
    assert driver == "psycopg2"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(one.startswith(f"{driver}-binary") for one in project["optional-dependencies"]["server"])
    postgres = SERVICES["postgres"]["environment"]
    assert uri == f"postgresql+psycopg2://{postgres['POSTGRES_USER']}@postgres/{postgres['POSTGRES_DB']}"
    logins = configparser.ConfigParser()
    logins.read(FOLDER / "mlflow-auth.ini")
    assert logins["mlflow"]["database_uri"] == uri
    assert "admin_password" not in logins["mlflow"]
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]
    (config,) = SERVICES["mlflow"]["configs"]
    assert SERVICES["mlflow"]["environment"]["MLFLOW_AUTH_CONFIG_PATH"] == config["target"]
    assert COMPOSE["configs"][config["source"]]["file"] == "mlflow-auth.ini"
