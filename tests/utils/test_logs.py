"""The project's own lines: which stream each goes to, and which level shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.main import COMMANDS, main
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


@pytest.mark.parametrize(
    ("level", "out", "err"),
    [
        ("debug", "100 % done\n", "debug: a detail\nwarning: something odd\nerror: something wrong\n"),
        ("info", "100 % done\n", "warning: something odd\nerror: something wrong\n"),
        ("", "100 % done\n", "warning: something odd\nerror: something wrong\n"),
        ("warning", "", "warning: something odd\nerror: something wrong\n"),
    ],
)
def test_the_level_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, out: str, err: str
) -> None:
    monkeypatch.setenv("GAUSSCSE_LOG", level)
    run_stage(every_level)
    assert capsys.readouterr() == (out, err)


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


@pytest.mark.parametrize(
    "terminal",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "C"}],
)
def test_a_terminal_that_is_not_utf_8_gets_every_text(terminal: dict[str, str]) -> None:
    """Into a pipe, as every command's help and every line of a command or stage goes there."""
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], cwd=ROOT, env={**os.environ, **terminal}, capture_output=True)
    out, err = done.stdout.decode("latin-1"), done.stderr.decode("latin-1")
    assert done.returncode == 0, err
    assert out.count("usage: gausscse") == len(COMMANDS) + 2
    greek = "α → β".encode().decode("latin-1") if terminal == {"LC_ALL": "C"} else r"\u03b1 \u2192 \u03b2"
    assert f"printed {greek}" in out
    assert f"logged {greek}" in out
    assert err == f"warning: warned {greek}\n"


def test_a_full_disk_below_stdout_ends_the_run_in_one_line() -> None:
    code = "from pipeline.utils.errors import run_stage; from pipeline.utils.logs import log; run_stage(lambda: log.info('x'))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == "error: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["stages.prepare", "pipeline.cli check"])
def test_an_unknown_level_is_one_line_and_exit_code_2(tmp_path: Path, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *module.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GAUSSCSE_LOG": "loud"},
        capture_output=True,
        text=True,
    )
    expected = "error: GAUSSCSE_LOG (environment): got 'loud'; write debug, info or warning\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize(("option", "shown"), [("-v", 10), ("--verbose", 10), ("-q", 30), ("--quiet", 30)])
def test_an_option_before_the_command_overrides_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, shown: int
) -> None:
    monkeypatch.setenv("GAUSSCSE_LOG", "info")
    monkeypatch.setattr(sys, "argv", ["gausscse", option, "corpora"])
    main()
    assert log.level == shown
    # What a command was asked for is no log line: it is shown at any level.
    assert "SNLI" in capsys.readouterr().out
