"""A stage that is stopped, killed, or finds the disk full leaves one line and no half output; and the next run works."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.gates import Gate, wait_for
from tests.stages.running import ended, plain_project, set_keys, snapshot, start

pytestmark = pytest.mark.faults

OUTPUTS = {"prepare": "data/prepared", "tokenize": "data/tokens"}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A project in which both data stages have run, and know from then on twenty times as many pairs."""
    values = {"data.generated": {"train": 1500, "dev": 90, "test": 90}, "model.backbone": str(tiny_backbone)}
    root = plain_project(tmp_path_factory.mktemp("faults") / "project", values)
    for stage in OUTPUTS:
        done = ended(start(root, stage))
        assert done.returncode == 0, done.stderr
    set_keys(root, {"data.generated.train": 30_000})
    return root


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "project"))


@pytest.mark.parametrize("number", list(CODES), ids=lambda number: number.name)
@pytest.mark.parametrize("stage", list(OUTPUTS))
def test_a_stopped_data_stage_leaves_what_was_there(project: Path, stage: str, number: signal.Signals) -> None:
    out = project / OUTPUTS[stage]
    before = snapshot(out)
    # Held where it has written its tables and is about to describe them.
    gate = Gate(project / "gate", r"/\.partial/new/.*\.json")
    gate.close()
    process = start(project, stage, gate=gate)
    wait_for(gate.holds, 300, f"{stage} writes")
    process.send_signal(number)
    err = ended(process).stderr
    assert process.returncode == CODES[number], err
    kept = {name: content for name, content in snapshot(out).items() if not name.startswith(".partial/")}
    assert kept == before
    if number != signal.SIGKILL:
        assert re.fullmatch(r"error: interrupted; .*\n", err)
        assert not (out / ".partial").exists()
        return
    done = ended(start(project, stage))
    assert done.returncode == 0, done.stderr
    assert not (out / ".partial").exists()
    assert (snapshot(out) != before) == (stage == "prepare")


@pytest.mark.parametrize("stage", list(OUTPUTS))
def test_a_full_disk_is_told_in_one_line(project: Path, stage: str) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a small disk is a mount in a namespace of its own, which only root may make")
    data, out = project / "data", project / OUTPUTS[stage]
    used = sum(len(content) for content in snapshot(data).values())
    small = f"mount -t tmpfs -o size={used // 1024 + 300}k none data && cp -a saved/. data"
    script = f'{small} && {{ "$@"; code=$?; }}; rm -rf saved; cp -a data saved; exit $code'
    data.rename(project / "saved")
    data.mkdir()
    before = snapshot(project / "saved" / Path(OUTPUTS[stage]).name)
    done = ended(start(project, stage, "unshare", "-m", "sh", "-c", script, "sh"))
    assert done.returncode in (1, 2), done.stderr
    assert re.fullmatch(r"error: data/.*: .*[Nn]o space left on device.*\n", done.stderr)
    assert snapshot(project / "saved" / Path(OUTPUTS[stage]).name) == before
    shutil.rmtree(out.parent)
    (project / "saved").rename(data)
    again = ended(start(project, stage))
    assert again.returncode == 0, again.stderr
