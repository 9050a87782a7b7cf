"""A project to collect the garbage of, and `gausscse gc` in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cli.gc import main
from pipeline.cluster import garbage
from tests.cli.storages import Later, Project
from tests.conftest import Command


@pytest.fixture(params=["folder", "s3"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_backbone: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    storage = "kept" if request.param == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?")
    return Project.made(tmp_path, tiny_backbone, storage)


@pytest.fixture
def on_disk(tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Project.made(tmp_path, tiny_backbone, "kept")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Lets gc believe that it runs so many days later; on S3, nobody can set the time of a file."""

    def days_later(days: int, now: int | None = None) -> None:
        def time_ns() -> int:
            return (time.time_ns() if now is None else now) + days * 86_400 * 1_000_000_000

        monkeypatch.setattr(garbage, "time", SimpleNamespace(time_ns=time_ns, strftime=time.strftime, localtime=time.localtime))

    return days_later


@pytest.fixture
def run(command: Command) -> Callable[..., tuple[int, str, str]]:
    """`gausscse gc` in a project: exit code, stdout, stderr."""
    return lambda project, *arguments: command(main, project.root, arguments)
