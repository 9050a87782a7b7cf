"""Every entry point says in one line, before anything slow is imported, what is wrong with the parameter files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.copies import ROOT

MODULES = ["pipeline.cli check", *(f"stages.{name}" for name in yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"])]


@pytest.mark.parametrize("module", MODULES)
def test_a_bad_key_ends_in_one_line_before_slow_imports(tmp_path: Path, module: str) -> None:
    for name in ("params.yaml", "execution.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    file = tmp_path / "params.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("epochs: 1", "epoch: 1"), encoding="utf-8")
    command = [sys.executable, "-X", "importtime", "-m", *module.split()]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2
    # What -X importtime says of each module, then the one line of ours.
    *imports, last = done.stderr.splitlines()
    assert last == "error: params.yaml: train.epoch: unknown key; did you mean train.epochs? (and 1 more)"
    assert all(line.startswith("import time:") for line in imports)
    imported = {line.rpartition("|")[2].strip() for line in imports}
    assert "pipeline.cluster.preflight" in imported
    assert not imported & {"torch", "transformers", "ray", "mlflow", "sklearn", "datasets"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dvc.yaml", "execution.yaml", "params.yaml"]
