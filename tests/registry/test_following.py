"""`gausscse registry follow` runs a command for each champion."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from pipeline.cli.registry import main
from pipeline.registry.following import POLL, ChampionWatch
from tests.conftest import PLAIN, ROOT, Command
from tests.gates import wait_for
from tests.registry.servers import empty_database

NAME = "gausscse"


def test_a_watch_reports_an_outage_once_and_tries_a_failed_version_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, uri = registry(tmp_path)
    watch = ChampionWatch(NAME, uri, 3600)
    for _ in range(2):
        assert watch.look() is None
    assert [record.message for record in caplog.records if "looking again" in record.message] == [f"{watch.error}; looking again"]
    assert watch.pause == POLL
    alias(client, 1)
    assert watch.look() is not None
    assert (watch.error, watch.due(1), watch.pause) == (None, True, 3600)
    assert [watch.failed(1), watch.failed(1), watch.due(1), watch.due(2), watch.pause] == [5, 10, False, True, POLL]
    watch._retry_at -= 10
    assert watch.due(1)
    assert (watch.failed(1, for_good=True), watch.due(1)) == (math.inf, False)
    # Another champion starts afresh.
    alias(client, 2)
    watch.look()
    assert (watch.due(1), watch.failed(2)) == (True, 5)


def project(root: Path) -> Path:
    for source, name in ((PLAIN, "params.yaml"), (ROOT / "execution.yaml", "execution.yaml")):
        (root / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return root


@contextmanager
def following(root: Path, uri: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """`gausscse registry follow` while the block runs; gives a function that reads its log. It ends by SIGTERM."""
    log, env = root / "follow.log", os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-m", "pipeline.cli", "registry", "follow", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=root, env=env, stdout=out, stderr=out)
    try:
        yield lambda: log.read_text(encoding="utf-8")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, log.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()


def registry(root: Path) -> tuple[MlflowClient, str]:
    """A registry with a model that has no version, and its address."""
    (root / "mlflow.db").write_bytes(empty_database())
    uri = f"sqlite:///{root / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    client.create_registered_model(NAME)
    return client, uri


def alias(client: MlflowClient, number: int) -> None:
    """A version without files that is champion."""
    client.create_model_version(NAME, "s3://nowhere/model")
    client.set_registered_model_alias(NAME, "champion", str(number))


@pytest.mark.faults
def test_a_failed_command_runs_again_and_a_newer_champion_first(tmp_path: Path) -> None:
    root, (client, uri) = project(tmp_path), registry(tmp_path)
    alias(client, 1)
    # The first run fails; that of version 2 waits until version 4 is champion.
    code = """
import pathlib, sys, time
seen = pathlib.Path("seen")
with seen.open("a") as out:
    out.write(sys.argv[1] + "\\n")
if len(seen.read_text().split()) == 1:
    sys.exit(7)
while sys.argv[1] == "2" and not pathlib.Path("go").exists():
    time.sleep(0.05)
"""
    with following(root, uri, "--every", "0.2", sys.executable, "-c", code, "{version}") as log:
        seen = root / "seen"
        wait_for(lambda: "is done for version 1" in log(), 120, "version 1 succeeds")
        assert seen.read_text() == "1\n1\n"
        assert "failed for version 1 with exit code 7" in log()
        alias(client, 2)
        wait_for(lambda: seen.read_text().endswith("2\n"), 30, "version 2 runs")
        alias(client, 3)
        alias(client, 4)
        (root / "go").touch()
        wait_for(lambda: "is done for version 4" in log(), 30, "version 4")
        assert seen.read_text() == "1\n1\n2\n4\n"
        # A run in progress ends with it.
        (root / "go").unlink()
        client.set_registered_model_alias(NAME, "champion", "2")
        wait_for(lambda: seen.read_text().endswith("4\n2\n"), 30, "version 2 runs again")
    assert "Traceback" not in log()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--"], "name a command"), (["/no/such/program"], "/no/such/program: cannot be started (No such file or directory)")],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, arguments: list[str], words: str
) -> None:
    client, uri = registry(tmp_path)
    alias(client, 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    code, _, err = command(main, project(tmp_path), ["follow", *arguments])
    assert code == 2
    assert words in err.strip().splitlines()[-1]
