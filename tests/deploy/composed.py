"""deploy/compose.yaml as Docker Compose reads it: with the values of an environment in place of ${NAME}."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "deploy"
# ${NAME}, ${NAME:-default} or ${NAME:?error}
_VALUE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def shared(name: str) -> Path:
    """A schema in the shared data; the test is skipped without it."""
    file = Path(os.environ.get("GAUSSCSE_DATA") or ROOT / "../shared/data").resolve() / "kuberay" / name
    if not file.is_file():
        pytest.skip(f"{file} is missing: set GAUSSCSE_DATA")
    return file


def values(file: Path) -> dict[str, str]:
    """Name → value of a file such as deploy/.env."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines if line and not line.startswith("#"))}


def example() -> dict[str, str]:
    """deploy/.env as env.example says it is made: every line that has no value gets one of its own."""
    return {name: value or secrets.token_hex(32) for name, value in values(FOLDER / "env.example").items()}


def composed(env: Mapping[str, str]) -> dict[str, Any]:
    """The file, with a value for each name; one that is wanted and missing is an error."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if env.get(name):
            return env[name]
        assert how != "?", f"{name} is missing: {rest}"
        return rest or ""

    return yaml.safe_load(_VALUE.sub(value, (FOLDER / "compose.yaml").read_text(encoding="utf-8")))
