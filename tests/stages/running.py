"""`dvc repro` as a user runs it, and what it said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def repro(root: Path, *arguments: str) -> str:
    """Its output; fails where it fails."""
    executable = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{executable}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [str(executable / "dvc"), "repro", *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


def stages_run(output: str) -> list[str]:
    """The stages that were run, in order."""
    return re.findall(r"Running stage '(\w+)'", output)


def set_param(root: Path, old: str, new: str, name: str = "params.yaml") -> None:
    """Replace a piece of text, which has to be there."""
    file = root / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
