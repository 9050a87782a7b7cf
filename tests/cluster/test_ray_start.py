"""A Ray that does not start on this machine: one line with the reason, or where to look, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.faults

START = """
from pipeline.utils.environment import set_defaults
set_defaults()
from pipeline.cluster.session import session
from pipeline.config.execution import ClusterParams
from pipeline.utils.errors import run_stage
def main():
    with session(ClusterParams()):
        pass
run_stage(main)
"""
# Python imports it first. The dashboard ends as if it were killed, once its log has lines of level INFO.
DIES = """
import os, sys, threading, time
from pathlib import Path
logs = [word.partition("=")[2] for word in sys.orig_argv if word.startswith("--log-dir=")]
def end():
    while not (log := Path(logs[0], "dashboard.log")).exists() or "Loading" not in log.read_text():
        time.sleep(0.001)
    os._exit(1)
if any(word.endswith("dashboard/dashboard.py") for word in sys.orig_argv):
    threading.Thread(target=end, daemon=True).start()
"""


def start(**environment: str) -> str:
    """The last line of a program that starts a Ray of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", START], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_long_tmpdir_is_named_with_what_to_set(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * max(1, 90 - len(str(tmp_path))))
    folder.mkdir()
    said = start(RAY_TMPDIR=str(folder))
    assert said.startswith("error: Ray does not start on this machine: ")
    assert str(folder) in said
    assert said.endswith("; set RAY_TMPDIR to a folder with a short path, such as /tmp")


def test_a_line_of_progress_is_not_given_as_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES, encoding="utf-8")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        said = start(PYTHONPATH=f"{tmp_path}:{ROOT}", RAY_TMPDIR=short)
        start_of = "error: Ray does not start on this machine: a process of it ended without an error; its log is "
        assert said.startswith(start_of)
        assert "INFO" in Path(said.removeprefix(start_of)).read_text(encoding="utf-8")
