from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from pipeline.cli.reference import PAGE, SCHEMAS, generate


@pytest.mark.parametrize("file", SCHEMAS.values(), ids=str)
def test_the_schemas_are_committed_byte_for_byte(file: Path) -> None:
    assert (ROOT / file).read_bytes() == generate(ROOT)[file].encode(), "run gausscse reference"


def test_every_key_has_values_default_reader_and_meaning() -> None:
    page = generate(ROOT)[PAGE]
    rows = [line.replace(r"\|", "").split("|")[1:-1] for line in page.splitlines() if line.startswith("| `") and "." in line]
    keys = {row[0].strip(" `"): row for row in rows if len(row) == 5}
    assert {"train.epochs", "tune.seeds", "evaluate.threshold_on", "register.name", "cluster.workers", "tracking.uri"} <= set(
        keys
    )
    for key, row in keys.items():
        assert all(cell.strip() for cell in row), key
        assert row[3].strip() != "none", f"{key} is read by no stage"
    assert [cell.strip() for cell in keys["objective.temperature"][1:4]] == [
        "number > 0",
        "`0.05`",
        "tune, train, evaluate, register, experiment, report",
    ]
    assert keys["train.seeds"][3].strip() == "train, experiment, report"
    assert keys["cluster.workers"][3].strip() == "tune, train, evaluate, experiment"


def test_the_check_says_which_file_is_out_of_step(tmp_path: Path) -> None:
    for name in ("params.yaml", "execution.yaml", "dvc.yaml", "stages"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pipeline.cli", "reference"]
    environment = {"PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert run().returncode == 0
    assert run("--check").returncode == 0
    # The page is built, not committed.
    (tmp_path / PAGE).unlink()
    assert run("--check").returncode == 0
    schema = "schemas/params.schema.json"
    (tmp_path / schema).write_text("something else\n", encoding="utf-8")
    stale = run("--check")
    assert (stale.returncode, stale.stderr) == (1, f"{schema} is out of date; run gausscse reference\n")
    assert run("--wrong").returncode == 2
