"""deploy/github/pipeline.yml: the steps of both jobs are run as GitHub runs them; `gh` only notes what it is asked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.copies import ROOT, copy_project
from tests.stages.running import BIN, commit, environment, run, set_keys

pytestmark = [pytest.mark.faults, pytest.mark.weekly, pytest.mark.timeout(1800)]

WORKFLOW = yaml.safe_load((ROOT / "deploy/github/pipeline.yml").read_text(encoding="utf-8"))
SMALL = {
    "data.generated.train": 1200,
    "data.generated.dev": 240,
    "data.generated.test": 240,
    "train.seeds": [1],
    "train.eval_every": 32,
    "tune.learning_rates": [2.0e-3],
    "tune.seeds": [1],
}
PRESET = "presets/quick.yaml"


class Runner:
    """A machine of GitHub's: its own home, the project's environment in .venv, files that the steps write."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout, self.summary, self.log = checkout, folder / "summary.md", ""
        (checkout / ".venv").mkdir()
        for path in BIN.parent.iterdir():
            (checkout / ".venv" / path.name).symlink_to(path)
        programs = folder / "programs"
        programs.mkdir(parents=True)
        self.asked = folder / "asked"
        (programs / "gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.asked}\n', encoding="utf-8")
        (programs / "gh").chmod(0o755)
        path = environment()["PATH"]
        self.env = {"HOME": str(folder), "RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(self.summary)}
        self.env["PATH"] = f"{programs}:{path}"

    def job(self, name: str, env: dict[str, str]) -> None:
        """Its steps after the environment was built, each in a shell of its own, as GitHub's default shell is called."""
        job: dict[str, Any] = WORKFLOW["jobs"][name]
        for step in job["steps"]:
            if "run" not in step or step["run"] == "make setup":
                continue
            for key in step.get("env", {}):
                assert key in env, key
            assert "${{" not in step["run"], "an expression in a script would be a way to inject code"
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=self.checkout,
                env=environment(**self.env, **env),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.log += done.stdout
            assert done.returncode == 0, f"{step.get('name')}: {done.stdout[-5000:]}"


@pytest.fixture(scope="module")
def origin(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository at GitHub. Its main needs data and a cluster that the runner lacks; branch `change` has another rate."""
    base = tmp_path_factory.mktemp("github")
    project = copy_project(base / "project")
    set_keys(project, {**SMALL, "model.backbone": str(tiny_backbone)}, PRESET)
    away = {"cluster.address": "http://127.0.0.1:9", "cluster.storage": str(base / "away"), "tracking.uri": "http://127.0.0.1:9"}
    set_keys(project, away, "execution.yaml")
    set_keys(project, {"data.root": str(base / "away")}, "params.yaml")
    run(project, "git", "branch", "--move", "--force", "main")
    commit(project, "main")
    run(project, "git", "checkout", "-qb", "change")
    set_keys(project, {"tune.learning_rates": [1.0e-3]}, PRESET)
    commit(project, "change")
    run(base, "git", "clone", "-q", "--bare", str(project), "origin.git")
    return base / "origin.git"


def checkout(origin: Path, branch: str, folder: Path) -> Path:
    run(folder, "git", "clone", "-q", "--branch", branch, str(origin), "checkout")
    return folder / "checkout"


@pytest.fixture(scope="module")
def asked(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """After the job of a pull request."""
    folder = tmp_path_factory.mktemp("pull")
    runner = Runner(checkout(origin, "change", folder), folder / "runner")
    runner.job("quick", {"GH_TOKEN": "", "NUMBER": "7"})
    return runner


def test_a_pull_request_gets_differences_and_report_as_a_comment(asked: Runner) -> None:
    words = asked.asked.read_text(encoding="utf-8").split()
    assert words[:3] == ["pr", "comment", "7"]
    comment = (asked.checkout / words[words.index("--body-file") + 1]).read_text(encoding="utf-8")
    assert comment == asked.summary.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in comment.splitlines() if line.startswith("| results/")
    ]
    changes = {(path, metric): (old, new) for path, metric, old, new, *_ in rows}
    assert any(path == "results/evaluate/metrics.json" and old != new for (path, _), (old, new) in changes.items()), comment
    assert "<summary>Report after the change</summary>" in comment
    assert len(comment) < 65_536
    # Prepare and tokenize ran before the change and were taken from there after it.
    for stage in ("prepare", "tokenize"):
        assert len(re.findall(rf"^Running stage '{stage}'", asked.log, re.MULTILINE)) == 1
    assert len(re.findall(r"^Running stage 'tune'", asked.log, re.MULTILINE)) == 2


def test_a_push_to_main_runs_the_pipeline_and_commits_what_it_came_to(asked: Runner, origin: Path, tmp_path: Path) -> None:
    place = checkout(origin, "main", tmp_path)
    # Here the real run is on this machine, and is the quick one.
    run(place, "cp", str(asked.checkout / "execution.yaml"), "execution.yaml")
    run(place, "cp", str(asked.checkout / "params.yaml"), "params.yaml")
    commit(place, "Train this")
    run(place, "git", "push", "-q", "origin", "main")
    run(place, "dvc", "cache", "dir", "--local", str(asked.checkout / ".dvc/cache"), PATH=f"{BIN}:{environment()['PATH']}")
    runner = Runner(place, tmp_path / "runner")
    # What has no value is empty, as at GitHub.
    runner.job("train", dict.fromkeys(WORKFLOW["jobs"]["train"]["env"], "") | {"RAY_AUTH_MODE": "token"})
    assert "gausscse version 1    champion" in runner.summary.read_text(encoding="utf-8")
    before, after = run(place, "git", "rev-parse", "HEAD~1").strip(), run(place, "git", "rev-parse", "HEAD").strip()
    assert run(origin, "git", "rev-parse", "main").strip() == after
    assert run(origin, "git", "log", "-1", "--format=%s", "main").strip() == f"Results of {before[:7]}"
    assert "dvc.lock" in run(origin, "git", "show", "--name-only", "--format=", "main").split()
    # Nothing changed, so nothing is committed.
    runner.job("train", dict.fromkeys(WORKFLOW["jobs"]["train"]["env"], "") | {"RAY_AUTH_MODE": "token"})
    assert run(origin, "git", "rev-parse", "main").strip() == after
    # A change that became champion is reverted, and the push has a later commit, too: the registry follows.
    set_keys(place, {"tune.learning_rates": [2.0e-3]}, "params.yaml")
    commit(place, "Another rate")
    run(place, "git", "push", "-q", "origin", "main")
    runner.job("train", dict.fromkeys(WORKFLOW["jobs"]["train"]["env"], "") | {"RAY_AUTH_MODE": "token"})
    registry = [str(BIN / "gausscse"), "registry"]
    if "version 2    champion" not in run(place, *registry, "status"):
        run(place, *registry, "promote", "2", "--force", "--reason", "to see")
    run(place, "git", "revert", "--no-edit", "HEAD~1")
    (place / "README.md").write_text("Changed.\n", encoding="utf-8")
    commit(place, "Words")
    run(place, "git", "push", "-q", "origin", "main")
    runner.job("train", dict.fromkeys(WORKFLOW["jobs"]["train"]["env"], "") | {"RAY_AUTH_MODE": "token"})
    assert "version 1    champion" in run(place, *registry, "status")


def test_every_secret_that_the_steps_may_drop_is_set_by_the_job() -> None:
    job = WORKFLOW["jobs"]["train"]
    (names,) = re.findall(r"for name in (.*); do", "\n".join(step.get("run", "") for step in job["steps"]))
    assert set(names.split()) == set(job["env"]) - {"RAY_AUTH_MODE"}
