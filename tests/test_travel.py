"""What of the project travels to a cluster as a job's working_dir."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from conftest import ROOT, copy_project
from ray._private.runtime_env.packaging import create_package

LIMIT = 1_000_000


def test_the_code_travels_and_data_history_and_environment_stay(tmp_path: Path) -> None:
    project, there = tmp_path / "project", tmp_path / "there"
    copy_project(project)
    stays = (
        "data/tokens/train/0.arrow",
        "models/seed-1/model.safetensors",
        ".venv/lib/torch.so",
        ".gausscse/trials/x/best/a",
        "my/pairs.jsonl",
    )
    for name in (*stays, ".dvc/cache/files/a", "mlruns/0/meta", "dvc.lock"):
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 1000)
    package = tmp_path / "package.zip"
    create_package(str(project), package, include_gitignore=True)
    assert package.stat().st_size < LIMIT
    with zipfile.ZipFile(package) as archive:
        archive.extractall(there)
        assert sum(one.file_size for one in archive.infolist()) < 2 * LIMIT
    names = {p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()}
    assert {"params.yaml", "execution.yaml", "dvc.yaml", "dvc.lock", "pyproject.toml", "constraints.txt"} <= names
    assert not names & {*stays, ".dvc/cache/files/a", "mlruns/0/meta"}
    assert not [name for name in names if name.startswith((".git/", "docs/", "tests/", ".venv"))]
    # Nothing that a job runs was left behind.
    code = {p.relative_to(ROOT).as_posix() for folder in ("pipeline", "stages") for p in (ROOT / folder).rglob("*.py")}
    assert code <= names
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.check"],
        cwd=there,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(there), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr


def test_the_package_runs_as_it_is(tmp_path: Path) -> None:
    project, there = copy_project(tmp_path / "project"), tmp_path / "there"
    environment = {"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "pipeline.package"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: inputs.json: no such file; run `make upload` first\n")
    (project / "inputs.json").write_text("{}", encoding="utf-8")
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (project / "gausscse.zip").stat().st_size < LIMIT
    with zipfile.ZipFile(project / "gausscse.zip") as archive:
        archive.extractall(there)
    (root,) = there.iterdir()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.check"],
        cwd=root,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert (root / "inputs.json").is_file()
