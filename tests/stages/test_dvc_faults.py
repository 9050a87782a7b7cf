"""Two `dvc repro` in one checkout, and a damaged DVC cache: real dvc and stages on a project of two stages."""

from __future__ import annotations

import shutil
import signal
import subprocess
from hashlib import md5
from pathlib import Path

import pytest

from pipeline.data.table_io import sha256_tree
from tests.copies import ROOT, copy_project
from tests.gates import Gate, wait_for
from tests.stages.running import BIN, dvc, environment, set_keys, stages_run

pytestmark = pytest.mark.faults

COMMAND = (str(BIN / "dvc"), "repro", "tokenize")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A project whose stages prepare and tokenize have run."""
    root = copy_project(tmp_path_factory.mktemp("finished") / "project")
    set_keys(root, {"model.backbone": str(tiny_backbone), "data.generated": {"train": 600, "dev": 120, "test": 120}})
    assert stages_run(dvc(root, "repro", "tokenize")) == ["prepare", "tokenize"]
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "project", symlinks=True))


def test_the_second_of_two_repros_stops_and_the_first_goes_on(project: Path, tmp_path: Path) -> None:
    digest = sha256_tree(project / "data")
    (project / "dvc.lock").unlink()
    shutil.rmtree(project / "data")
    # Without a run cache, so that the stages run again.
    shutil.rmtree(project / ".dvc/cache")
    gate = Gate(tmp_path / "gate", r"/\.partial/new/.*\.json")
    gate.close()
    first = subprocess.Popen(
        COMMAND,
        cwd=project,
        env=environment(**gate.environment(str(ROOT))),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(gate.holds, 200, "stage prepare of the first writes")
        second = subprocess.run(COMMAND, cwd=project, env=environment(), capture_output=True, text=True, timeout=200)
        assert second.returncode != 0
        assert stages_run(second.stdout) == []
        (error,) = [line for line in second.stderr.splitlines() if line.startswith("ERROR")]
        assert "/data/identity/" in error
        assert "is busy" in error
        assert str(first.pid) in second.stderr
        gate.open()
        said, _ = first.communicate(timeout=400)
    finally:
        gate.open()
        first.send_signal(signal.SIGKILL)
    assert first.returncode == 0, said
    assert stages_run(said) == ["prepare", "tokenize"]
    assert sha256_tree(project / "data") == digest
    # The next one finds the work done.
    assert stages_run(dvc(project, "repro", "tokenize")) == []


@pytest.mark.parametrize("damage", ["cut", "lost"])
def test_a_damaged_cache_makes_the_stage_run_again(project: Path, damage: str) -> None:
    digest = sha256_tree(project / "data")
    report = project / "data/prepared/prepare.json"
    name = md5(report.read_bytes(), usedforsecurity=False).hexdigest()
    kept = project / ".dvc/cache/files/md5" / name[:2] / name[2:]
    content = kept.read_bytes()
    kept.unlink()
    if damage == "cut":
        kept.write_bytes(content[: len(content) // 2])
    shutil.rmtree(project / "data")
    assert stages_run(dvc(project, "repro", "tokenize"))[0] == "prepare"
    assert sha256_tree(project / "data") == digest
    # The cache is whole again.
    shutil.rmtree(project / "data")
    assert stages_run(dvc(project, "repro", "tokenize")) == []
    assert sha256_tree(project / "data") == digest
