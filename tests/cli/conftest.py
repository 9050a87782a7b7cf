"""A project to collect the garbage of, and `gausscse gc` in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cli.gc import main
from pipeline.cluster import garbage
from pipeline.config.execution import TrackingParams
from pipeline.tracking.server import open_tracker
from pipeline.utils.errors import run_stage
from tests.cli.storages import Later, Project


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow."""
    folder = tmp_path_factory.mktemp("mlflow")
    open_tracker(TrackingParams(uri=f"sqlite:///{folder}/mlflow.db", experiment="another"), folder)
    return folder / "mlflow.db"


@pytest.fixture(params=["folder", "s3"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_backbone: Path, s3: str, database: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    storage = "kept" if request.param == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?")
    return Project.made(tmp_path, tiny_backbone, storage, database)


@pytest.fixture
def on_disk(tmp_path: Path, tiny_backbone: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Project.made(tmp_path, tiny_backbone, "kept", database)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Lets gc believe that it runs so many days later; on S3, nobody can set the time of a file."""

    def days_later(days: int, now: int | None = None) -> None:
        def time_ns() -> int:
            return (time.time_ns() if now is None else now) + days * 86_400 * 1_000_000_000

        monkeypatch.setattr(garbage, "time", SimpleNamespace(time_ns=time_ns, strftime=time.strftime, localtime=time.localtime))

    return days_later


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, which has imported already what takes seconds: exit code, stdout, stderr."""

    def call(project: Project, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(project.root)
        capsys.readouterr()
        code = 0
        try:
            run_stage(partial(main, arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
