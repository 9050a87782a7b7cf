"""`gausscse registry …` as it is run, from a project's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli.registry import main
from pipeline.config.execution import TrackingParams
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import open_tracker
from tests.conftest import Command
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
def run(monkeypatch: pytest.MonkeyPatch, command: Command) -> Run:
    """`gausscse registry` in a project: exit code, stdout, stderr."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return lambda root, *arguments: command(main, root, arguments)


def test_status_promote_rollback_and_history(registered: Path, run: Run) -> None:
    code, out, err = run(registered, "status")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    aliases = [re.search(r"version (\d+) +(champion|challenger|) ", line).groups() for line in lines]  # type: ignore[union-attr]
    assert aliases == [("1", ""), ("2", "challenger"), ("3", "champion")]
    assert "dev PR-AUC 50.00  commit cccccccccccc  promoted: there was no champion yet" in lines[0]

    code, out, err = run(registered, "promote", "2")
    assert (code, err) == (2, "error: gausscse version 2 was not promoted\n")
    assert "champion 3 → 3  version 2 kept: promotion PR-AUC " in out

    code, out, err = run(registered, "promote", "2", "--force", "--reason", "the demonstration asks for it")
    assert (code, err) == (0, "")
    assert "champion 3 → 2  version 2 promoted by force: the demonstration asks for it  (" in out

    code, out, err = run(registered, "rollback", "--reason", "it is over")
    assert (code, err) == (0, "")
    assert "champion 2 → 3  version 3 rolled back: it is over  (" in out

    code, out, err = run(registered, "history")
    assert (code, err) == (0, "")
    changes = [re.search(r"champion (\S+) → (\d+)  version (\d+)", line).groups() for line in out.splitlines()]  # type: ignore[union-attr]
    assert [" ".join(change) for change in changes] == ["none 1 1", "1 1 2", "1 3 3", "3 3 2", "3 2 2", "2 3 3"]
    code, compared, err = run(registered, "compare", "1", "3")
    assert (code, err) == (0, "")
    rows = [line.split() for line in compared[compared.index("gausscse: version 3 against version 1") :].splitlines()[2:]]
    assert {row[0] for row in rows} == {"dev", "generated_test"}
    assert all(float(low) <= float(difference) <= float(high) for *_, difference, low, high in rows)
    every = json.loads(run(registered, "history", "--json")[1])
    assert [event["action"] for event in every] == ["promoted", "kept", "promoted", "kept", "promoted by force", "rolled back"]
    assert every[2]["decision"]["differences"]["promotion"]["pr_auc"]["low"] > 0


@pytest.mark.parametrize("arguments", [["--force"], ["--reason", "x"]])
def test_a_refused_command_is_one_line(registered: Path, run: Run, arguments: list[str]) -> None:
    code, _, err = run(registered, "promote", "1", *arguments)
    assert code == 2
    assert err.startswith('error: promote: --force and --reason "…" go together')
    assert err.count("\n") == 1


def test_what_somebody_wrote_into_the_registry_does_nothing_to_the_terminal(registered: Path, run: Run) -> None:
    reason = "\x1b]0;title\x07\x1b[2J\ngausscse version 9 champion\u202e"
    for command in (["rollback", "--reason", reason], ["status"], ["history"]):
        code, out, err = run(registered, *command)
        assert (code, err) == (0, "")
        assert r"\x1b]0;title\x07\x1b[2J\ngausscse version 9 champion\u202e" in out
        assert not {"\x1b", "\x07", "\u202e"} & {*out}
