"""DVC and git as a user runs them, and what they said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from tests.copies import PLAIN, ROOT
from tests.gates import Gate

# The output of `dvc status --json` if nothing is stale.
CLEAN = {stage: ["always changed"] for stage in ("identity", "register", "report")}
# What `dvc repro` runs although nothing changed; without identity (`stages_run`).
EVERY_TIME = ["register", "report"]
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    """A user's shell with the environment on its PATH, and without any setting that would point elsewhere."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_") and key != "MLFLOW_TRACKING_URI"}
    who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in (("NAME", "t"), ("EMAIL", "t@t"))}
    return {**kept, **who, "PATH": f"{BIN}:{kept['PATH']}", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **more}


def run(root: Path, *command: str, **more: str) -> str:
    # Into files: a worker of DVC's queue may outlive the command for good (a race in its monitor), and it would hold pipes open.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        done = subprocess.run(list(command), cwd=root, env=environment(**more), stdout=out, stderr=err)
        for file in (out, err):
            file.seek(0)
        said, complained = out.read(), err.read()
    assert done.returncode == 0, f"{command}:\n{said[-3000:]}{complained[-5000:]}"
    return said


def start(root: Path, stage: str, *before: str, gate: Gate | None = None) -> subprocess.Popen[str]:
    """A stage as a process, below a command if one is given, held by a gate if there is one."""
    more = {"PYTHONPATH": str(ROOT)} if gate is None else gate.environment(str(ROOT))
    command = [*before, sys.executable, "-m", f"stages.{stage}"]
    return subprocess.Popen(command, cwd=root, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], timeout: int = 1200) -> subprocess.CompletedProcess[str]:
    """The end of a process; `.ci/run` lets it wait for everything else on the machine."""
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def snapshot(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their names in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def dvc(root: Path, *arguments: str, **more: str) -> str:
    return run(root, str(BIN / "dvc"), *arguments, **more)


def commit(root: Path, message: str) -> None:
    run(root, "git", "add", "-A")
    run(root, "git", "commit", "-qm", message)


def set_keys(root: Path, values: dict[str, Any], name: str = "params.yaml") -> None:
    """Write values of known keys, given as `section.key`."""
    tree = yaml.safe_load((root / name).read_text(encoding="utf-8"))
    for dotted, value in values.items():
        *above, last = dotted.split(".")
        section = reduce(lambda level, key: level[key], above, tree)
        assert last in section
        section[last] = value
    (root / name).write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def plain_project(root: Path, values: dict[str, Any], execution: dict[str, Any] | None = None) -> Path:
    """Write the parameter files of a project without DVC into a folder; `values` and `execution` are those that differ."""
    root.mkdir(exist_ok=True)
    for name, file, changes in (("params.yaml", PLAIN, values), ("execution.yaml", ROOT / "execution.yaml", execution or {})):
        shutil.copyfile(file, root / name)
        set_keys(root, changes, name)
    set_keys(root, {"data.root": str(ROOT / "pipeline/data/lexicon/words.json")})
    return root


def objective_of(preset: str) -> dict[str, Any]:
    """Section `objective` of a preset."""
    return yaml.safe_load((ROOT / f"presets/{preset}.yaml").read_text(encoding="utf-8"))["objective"]


def repro(root: Path, *arguments: str) -> str:
    """Its output; fails where it fails."""
    return dvc(root, "repro", *arguments)


def stages_run(output: str) -> list[str]:
    """The stages that were run, in order; without identity, which runs every time."""
    return [stage for stage in re.findall(r"Running stage '(\w+)'", output) if stage != "identity"]


def set_param(root: Path, old: str, new: str, name: str = "params.yaml") -> None:
    """Replace a piece of text, which has to be there."""
    file = root / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
