"""The project's own lines: which stream each goes to, and which level shows it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from copies import ROOT

from pipeline.cli.main import main
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log, set_up


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


def test_a_line_is_shown_once_even_if_the_root_logger_shows_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(root)
    try:
        run_stage(every_level)
    finally:
        logging.getLogger().removeHandler(root)
    assert capsys.readouterr().err.count("something odd") == 1


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
