"""What `gausscse serve` refuses before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import serve
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.serving.server import Registry


@pytest.mark.parametrize(
    ("arguments", "token", "words"),
    [
        (["--host", "0.0.0.0"], None, "--host 0.0.0.0: others can reach it, so set GAUSSCSE_SERVE_TOKEN"),
        ([], "long-enough-as-a-token,too-short", "a token needs at least 16 ASCII characters"),
        (["--replicas", "2"], None, "--replicas 2: write the fewest and the most"),
        (["--replicas", "0:2"], None, "--replicas 0:2"),
        (["--max-rows", "0"], None, "--max-rows: '0' is not a whole number from 1 to"),
        (["--every", "0"], None, "--every: '0' is not a number above 0"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], token: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(serve.TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(serve.TOKEN, token)
    with pytest.raises(UserError) as caught:
        serve.main(arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token_and_a_token_leaves_the_environment(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(serve.TOKEN, raising=False)
    assert serve._tokens(host) == []
    monkeypatch.setenv(serve.TOKEN, "long-enough-as-a-token, another-one-of-these")
    assert serve._tokens("0.0.0.0") == ["long-enough-as-a-token", "another-one-of-these"]
    assert serve.TOKEN not in serve.os.environ


@pytest.mark.parametrize(("arguments", "uri"), [([], "sqlite:///mlflow.db"), (["--name", "gausscse"], "")])
def test_outside_a_project_a_name_and_mlflow_are_needed(
    arguments: list[str], uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError) as caught:
        serve.main(arguments)
    assert str(caught.value) == (
        "params.yaml: no such file; run in a project's root, or elsewhere with --name and the environment variable "
        "MLFLOW_TRACKING_URI"
    )


def test_no_thread_starts_another_ray(tmp_path: Path) -> None:
    """Ray reads this when it is imported. Here the command ends once it asks MLflow."""
    code = """
from pipeline.cli import serve
from pipeline.utils.errors import UserError
try:
    serve.main(["--name", "a-model"])
except UserError as error:
    print(error)
from ray._private import auto_init_hook
print(auto_init_hook.enable_auto_connect)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    error, connects = done.stdout.splitlines()
    assert "no MLflow database here" in error
    assert connects == "False"


def test_a_model_or_a_corpus_that_is_not_there_is_one_line(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(registry.root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.tracker.uri)
    with pytest.raises(UserError, match="the registry has no alias 'champion' of a model 'nobody'"):
        serve.main(["--name", "nobody"])
    registry.add(1)
    with pytest.raises(UserError, match=r"nothing: no _manifest\.json here: run gausscse encode until it is done"):
        serve.main(["--name", registry.name, "--corpus", "nothing"])
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match=r"--port \d+: cannot be opened at 127\.0\.0\.1"),
    ):
        serve.main(["--name", registry.name, "--port", str(taken.getsockname()[1])])
