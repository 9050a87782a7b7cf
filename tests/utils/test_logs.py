"""The project's own lines: which stream each goes to, and which level shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.main import COMMANDS
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log, set_up
from tests.copies import ROOT


@pytest.fixture(autouse=True)
def level_of_the_tests() -> Iterator[None]:
    yield
    set_up()


def every_level() -> None:
    log.debug("a detail")
    log.info("100 % done")
    log.warning("something odd")
    log.error("something wrong")


@pytest.mark.parametrize(("level", "out"), [("info", "100 % done\n"), ("warning", "")])
def test_the_level_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, out: str
) -> None:
    monkeypatch.setenv("GAUSSCSE_LOG", level)
    run_stage(every_level)
    assert capsys.readouterr() == (out, "warning: something odd\nerror: something wrong\n")


EVERY_HELP = """
import contextlib, sys
from pipeline.cli.main import COMMANDS, main
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log
for command in ([], *([name] for name in COMMANDS), ["registry", "history"]):
    sys.argv = ["gausscse", *command, "--help"]
    with contextlib.suppress(SystemExit):
        main()
run_stage(lambda: print("printed \\u03b1 \\u2192 \\u03b2"))
run_stage(lambda: log.info("logged \\u03b1 \\u2192 \\u03b2"))
run_stage(lambda: log.warning("warned \\u03b1 \\u2192 \\u03b2"))
"""


def test_a_terminal_that_is_not_utf_8_gets_every_text() -> None:
    """Into a pipe, as every command's help and every line of a command or stage goes there."""
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: gausscse") == len(COMMANDS) + 2
    assert r"printed \u03b1 \u2192 \u03b2" in done.stdout
    assert r"logged \u03b1 \u2192 \u03b2" in done.stdout
    assert done.stderr == "warning: warned \\u03b1 \\u2192 \\u03b2\n"


def test_a_full_disk_below_stdout_ends_the_run_in_one_line() -> None:
    code = "from pipeline.utils.errors import run_stage; from pipeline.utils.logs import log; run_stage(lambda: log.info('x'))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == "error: No space left on device"
    assert "Traceback" not in done.stderr


def test_an_unknown_level_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUSSCSE_LOG", "loud")
    with pytest.raises(SystemExit, match="2"):
        run_stage(every_level)
    assert capsys.readouterr() == ("", "error: GAUSSCSE_LOG (environment): got 'loud'; write debug, info or warning\n")
