"""The files of deploy/, as far as they can be checked without Docker and Kubernetes: against the programs they start."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from click import Command
from conftest import ROOT
from mlflow.cli import server
from ray.scripts.scripts import start
from sqlalchemy import make_url

COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("service", "program", "command"),
    [
        ("head", ["ray", "start"], start),
        ("worker", ["ray", "start"], start),
        ("mlflow", ["mlflow", "server"], server),
    ],
)
def test_a_service_starts_its_program_with_options_that_it_has(service: str, program: list[str], command: Command) -> None:
    arguments = SERVICES[service]["command"]
    assert arguments[:2] == program
    # click refuses what it does not know, and values that are none; nothing is started.
    parsed = command.make_context(" ".join(program), arguments[2:], resilient_parsing=False)
    assert parsed.params


def test_services_wait_for_what_they_need_and_that_is_there() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0].startswith(("/", "$", ".")) or volume.partition(":")[0] in COMPOSE["volumes"]


def test_one_image_has_all_that_every_role_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert f"ARG UV_VERSION={re.search(r'UV_VERSION := (.*)', (ROOT / 'Makefile').read_text(encoding='utf-8'))[1]}" in DOCKERFILE  # type: ignore[index]
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    images = {service["image"] for service in SERVICES.values()}
    # Others' images by a tag that does not move.
    assert all(image == "gausscse" or ":" in image for image in images)
    assert "USER gausscse" in DOCKERFILE


def test_the_database_s_driver_is_the_one_that_is_installed() -> None:
    uri = re.sub(r"\$\{[^}]*\}", "x", SERVICES["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"])
    # SQLAlchemy 2.1 takes another one where none is named.
    driver = make_url(uri).get_driver_name()
    assert driver == "psycopg2"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(one.startswith(f"{driver}-binary") for one in project["optional-dependencies"]["server"])
