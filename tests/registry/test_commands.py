"""`gausscse registry …` as it is run, from a project's folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.cli.registry import main
from pipeline.config.execution import TrackingParams
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import open_tracker
from pipeline.utils.errors import run_stage
from tests.conftest import ROOT
from tests.registry.lab import Lab


@pytest.fixture(scope="module")
def registered(lab: Lab) -> Path:
    """A project with three versions, the last of them champion."""
    tracker = open_tracker(TrackingParams(uri=None, experiment="gausscse"), lab.root)
    run = pipeline_run(tracker, "a" * 64, {}, {})
    for encoder in (lab.untrained(1), lab.untrained(2), lab.trained(1)):
        lab.register(tracker, "gausscse", encoder, run, git_commit="c" * 40)
    return lab.root


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process, which has imported already what takes seconds: exit code, stdout, stderr."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(root: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(root)
        capsys.readouterr()
        code = 0
        try:
            run_stage(partial(main, arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_status_promote_rollback_and_history(registered: Path, run: Run) -> None:
    code, out, err = run(registered, "status")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [re.search(r"version (\d+) +(champion|challenger|) ", line).groups() for line in lines] == [  # type: ignore[union-attr]
        ("1", ""),
        ("2", "challenger"),
        ("3", "champion"),
    ]
    assert "dev PR-AUC 50.00  commit cccccccccccc  promoted: there was no champion yet" in lines[0]

    code, out, err = run(registered, "promote", "2")
    assert code == 2
    assert "champion 3 → 3  version 2 kept: promotion PR-AUC " in out
    assert err == "error: gausscse version 2 was not promoted\n"

    code, out, err = run(registered, "promote", "2", "--force", "--reason", "the demonstration asks for it")
    assert (code, err) == (0, "")
    assert "champion 3 → 2  version 2 promoted by force: the demonstration asks for it  (" in out

    code, out, err = run(registered, "rollback", "--reason", "it is over")
    assert (code, err) == (0, "")
    assert "champion 2 → 3  version 3 rolled back: it is over  (" in out

    code, out, err = run(registered, "history")
    assert (code, err) == (0, "")
    assert [re.search(r"champion (\S+) → (\d+)  version (\d+)", line).groups() for line in out.splitlines()] == [  # type: ignore[union-attr]
        ("none", "1", "1"),
        ("1", "1", "2"),
        ("1", "3", "3"),
        ("3", "3", "2"),
        ("3", "2", "2"),
        ("2", "3", "3"),
    ]
    # As a process; a terminal without the arrow shows its number.
    env = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "pipeline.cli", "registry", "history"]
    done = subprocess.run(command, cwd=registered, env=env, capture_output=True, check=True)
    assert done.stdout.decode("latin-1") == out.replace("→", r"\u2192")
    every = json.loads(run(registered, "history", "--json")[1])
    assert [event["change"]["action"] for event in every] == ["promoted", "kept", "promoted", "kept", "promoted", "rolled back"]
    assert every[2]["change"]["decision"]["differences"]["promotion"]["pr_auc"]["low"] > 0


def test_compare_prints_a_row_per_metric(registered: Path, run: Run) -> None:
    code, out, err = run(registered, "compare", "1", "3")
    assert (code, err) == (0, "")
    table = out[out.index("gausscse: version 3 against version 1") :].splitlines()
    rows = [line.split() for line in table[2:]]
    assert {row[0] for row in rows} == {"dev", "generated_test"}
    for *_, old, new, difference, low, high in rows:
        assert float(difference) == pytest.approx(float(new) - float(old), abs=0.011)
        assert float(low) <= float(difference) <= float(high)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["promote", "9"], "error: models:/gausscse/9: the registry has no version 9 of a model 'gausscse'"),
        (["promote", "1", "--force"], 'error: promote --force: give a reason with --reason "…"; the history records it'),
        (["promote", "1", "--reason", "x"], "error: promote --reason: needs --force; without it, the rule gives the reason"),
    ],
)
def test_a_refused_command_is_one_line(registered: Path, run: Run, arguments: list[str], said: str) -> None:
    code, _, err = run(registered, *arguments)
    assert code == 2
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_project_without_a_model_is_one_line(lab: Lab, run: Run, tmp_path: Path) -> None:
    for name in ("params.yaml", "execution.yaml"):
        (tmp_path / name).write_text((lab.root / name).read_text(encoding="utf-8"), encoding="utf-8")
    for command in ("status", "history"):
        code, _, err = run(tmp_path, command)
        assert code == 2
        assert "`dvc repro` " in err
        assert err.count("\n") == 1
