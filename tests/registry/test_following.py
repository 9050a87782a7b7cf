"""`gausscse registry follow` and MLflow's own webhooks: a command runs for each champion."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow.webhooks.delivery import _generate_hmac_signature

from pipeline.cli.registry import main
from pipeline.registry.following import POLL, ChampionWatch, retry_pause
from pipeline.registry.webhooks import SECRET, WebhookError, says_champion_moved
from pipeline.utils.errors import run_stage
from tests.conftest import PLAIN, ROOT
from tests.gates import wait_for
from tests.registry.servers import free_port

NAME, KEY, NOW = "gausscse", "s" * 16, 1_800_000_000


def message(entity: str = "model_version_alias", name: str = NAME, alias: str = "champion") -> bytes:
    return json.dumps({"entity": entity, "action": "created", "data": {"name": name, "alias": alias, "version": "2"}}).encode()


def signed(body: bytes, secret: str = KEY, sent: str = str(NOW)) -> dict[str, str]:
    """Headers as MLflow's own code makes them."""
    return {
        "x-mlflow-delivery-id": "an-id",
        "x-mlflow-timestamp": sent,
        "x-mlflow-signature": _generate_hmac_signature(secret, "an-id", sent, body.decode()),
    }


def test_the_pause_doubles_up_to_five_minutes() -> None:
    assert [retry_pause(failures) for failures in range(9)] == [0, 5, 10, 20, 40, 80, 160, 300, 300]
    assert retry_pause(1_000_000) == 300


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (message(), True),
        (message(name="another"), False),
        (message(alias="challenger"), False),
        (message(entity="model_version_tag"), False),
        (b"[]", False),
        (b'{"entity": "model_version_alias", "data": null}', False),
    ],
)
def test_a_signed_message_says_whether_the_champion_moved(body: bytes, answer: bool) -> None:
    assert says_champion_moved(signed(body), body, NAME, KEY, NOW + 299) is answer


@pytest.mark.parametrize(
    ("headers", "now", "words"),
    [
        ({}, NOW, "not signed"),
        (signed(message(), "t" * 16), NOW, "not signed"),
        (signed(message()) | {"x-mlflow-delivery-id": "another"}, NOW, "not signed"),
        (signed(message()) | {"x-mlflow-timestamp": str(NOW + 1)}, NOW, "not signed"),
        (signed(message(alias="challenger")), NOW, "not signed"),
        (signed(message()) | {"x-mlflow-signature": "v1,ä"}, NOW, "not signed"),
        (signed(message()), NOW + 301, "old"),
        (signed(message()), NOW - 301, "old"),
        (signed(message(), sent="never"), NOW, "old"),
    ],
)
def test_forged_and_old_messages_are_refused(headers: dict[str, str], now: float, words: str) -> None:
    with pytest.raises(WebhookError, match=words):
        says_champion_moved(headers, message(), NAME, KEY, now)


def test_a_watch_reports_an_outage_once_and_tries_a_failed_version_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    client.create_registered_model(NAME)
    watch = ChampionWatch(NAME, uri, 3600, "follow", lambda: "looking again")
    for _ in range(2):
        assert watch.look() is None
    assert [record.message for record in caplog.records if "looking again" in record.message] == [
        f"follow: {watch.error}; looking again"
    ]
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


def environment(**variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TRACKING")}
    return kept | {"PYTHONPATH": str(ROOT)} | variables


def project(root: Path) -> Path:
    for source, name in ((PLAIN, "params.yaml"), (ROOT / "execution.yaml", "execution.yaml")):
        (root / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return root


@contextmanager
def following(root: Path, env: dict[str, str], *arguments: str) -> Iterator[Callable[[], str]]:
    """`gausscse registry follow` while the block runs; gives a function that reads its log. It ends by SIGTERM."""
    log = root / "follow.log"
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


def alias(client: MlflowClient, number: int) -> None:
    """A version without files that is champion."""
    client.create_model_version(NAME, "s3://nowhere/model")
    client.set_registered_model_alias(NAME, "champion", str(number))


def post(port: int, headers: dict[str, str]) -> int:
    """The status of the answer to a message."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/", message(), headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.faults
def test_a_signed_webhook_starts_the_command_at_once(tmp_path: Path) -> None:
    """With an hour between two looks, so only the message can have started it. tests/serving/test_swap.py has MLflow send one."""
    root, port = project(tmp_path), free_port()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    client.create_registered_model(NAME)
    alias(client, 1)
    # The secret is not passed on.
    code = f"import os, sys; assert '{SECRET}' not in os.environ; open('seen', 'a').write(sys.argv[1] + '\\n')"
    options = ("--every", "3600", "--listen", f"127.0.0.1:{port}", "--", sys.executable, "-c", code, "v{version}")
    with following(root, environment(MLFLOW_TRACKING_URI=uri, **{SECRET: KEY}), *options) as log:
        seen, now = root / "seen", str(int(time.time()))
        wait_for(lambda: "is done for version 1" in log(), 120, "the first run")
        alias(client, 2)
        for headers in ({}, signed(message(), "t" * 16, now)):
            assert post(port, headers) == 401
        assert post(port, {"Content-Length": "65537"}) == 413
        assert seen.read_text() == "v1\n"
        assert post(port, signed(message(), sent=now)) == 204
        wait_for(lambda: "is done for version 2" in log(), 60, "the second run")
        wait_for(lambda: log().count("is not signed with the secret") == 2, 30, "both are logged")
    assert seen.read_text() == "v1\nv2\n"
    assert "Traceback" not in log()


@pytest.mark.faults
def test_a_failed_command_runs_again_and_a_newer_champion_first(tmp_path: Path) -> None:
    root = project(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    client.create_registered_model(NAME)
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
    with following(root, environment(MLFLOW_TRACKING_URI=uri), "--every", "0.2", sys.executable, "-c", code, "{version}") as log:
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
    [
        (["--"], "name a command"),
        (["--every", "nan", "true"], "not a number of seconds above 0"),
        (["--listen", "8001", "true"], "write HOST:PORT"),
        (["--listen", "127.0.0.1:8001", "true"], f"set {SECRET}"),
        (["/no/such/program"], "/no/such/program: cannot be started (No such file or directory)"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv(SECRET, raising=False)
    if "/no/such/program" in arguments:
        client = MlflowClient(uri, uri)
        client.create_registered_model(NAME)
        alias(client, 1)
    with pytest.raises(SystemExit) as ended:
        run_stage(lambda: main(["follow", *arguments]))
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert words in said[-1], said
