"""`gausscse registry follow` and MLflow's own webhooks: a command runs for each champion."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gates import wait_for
from mlflow.tracking import MlflowClient
from mlflow.webhooks.delivery import _generate_hmac_signature

from pipeline.cli.registry import main
from pipeline.registry.following import retry_pause
from pipeline.registry.webhooks import SECRET, WebhookError, says_champion_moved
from pipeline.utils.errors import run_stage
from tests.conftest import PLAIN, ROOT
from tests.registry.servers import free_port, served

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


def test_the_pause_doubles_up_to_five_minutes_however_often_it_fails() -> None:
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
        (b"{", False),
        (b'{"entity": "model_version_alias", "data": null}', False),
    ],
)
def test_a_message_that_mlflow_signed_says_whether_the_champion_moved(body: bytes, answer: bool) -> None:
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


@pytest.mark.faults
def test_the_webhook_of_a_server_starts_the_command_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an hour between two looks, so only the webhook can have started it."""
    root, port = project(tmp_path), free_port()
    cryptic = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    allowed = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true"}
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with served(tmp_path, database, MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY=cryptic, **allowed) as server:
        access = {"MLFLOW_TRACKING_USERNAME": server.user, "MLFLOW_TRACKING_PASSWORD": server.password}
        for key, value in access.items():
            monkeypatch.setenv(key, value)
        client = MlflowClient(server.uri, server.uri)
        client.create_registered_model(NAME)
        # As docs/serving.md shows it.
        client.create_webhook(
            "promotion",
            f"http://127.0.0.1:{port}",
            ["model_version_alias.created", "model_version_alias.deleted"],
            secret=KEY,
        )
        alias(client, 1)
        env = environment(MLFLOW_TRACKING_URI=server.uri, **access, **{SECRET: KEY})
        # The secret is not passed on.
        code = f"import os, sys; assert '{SECRET}' not in os.environ; open('seen', 'a').write(sys.argv[1] + '\\n')"
        options = ("--every", "3600", "--listen", f"127.0.0.1:{port}", "--", sys.executable, "-c", code, "v{version}")
        with following(root, env, *options) as log:
            seen = root / "seen"
            wait_for(lambda: seen.exists() and seen.read_text() == "v1\n", 120, "the first run")
            wait_for(lambda: "is done for version 1" in log(), 30, "its line")
            alias(client, 2)
            wait_for(lambda: seen.read_text() == "v1\nv2\n", 60, "the second run")
            for headers in ({}, signed(message(), "t" * 16, str(int(time.time())))):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("POST", "/", message(), headers)
                assert connection.getresponse().status == 401
                connection.close()
            wait_for(lambda: log().count("is not signed with the secret") == 2, 30, "both are noted")
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/", headers={"Content-Length": "65537"})
            assert connection.getresponse().status == 413
            connection.close()
        assert seen.read_text() == "v1\nv2\n"
        assert "Traceback" not in log()


@pytest.mark.faults
def test_by_polling_a_command_that_fails_is_run_again_and_a_newer_champion_comes_first(tmp_path: Path) -> None:
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
        ([], "name a command"),
        (["--"], "name a command"),
        (["--every", "0", "true"], "not a number of seconds above 0"),
        (["--every", "nan", "true"], "not a number of seconds above 0"),
        (["--listen", "8001", "true"], "write HOST:PORT"),
        (["--listen", "127.0.0.1:8001", "true"], f"set {SECRET}"),
        (["/no/such/program"], "/no/such/program: cannot be started (No such file or directory)"),
    ],
)
def test_mistakes_are_one_line(
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
