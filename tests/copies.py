"""Where the project is, and copies of it to run things in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAIN = ROOT / "tests/plain.yaml"
"""Parameters of the paper's method at a small size: what tests start from, whatever params.yaml recommends."""


def copy_project(target: Path, params: Path = PLAIN) -> Path:
    """The project's own files (tracked, or new and not ignored) in a fresh git repository.

    Args:
        params: what becomes its params.yaml; `ROOT / "params.yaml"` gives the project as a user clones it.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        # What `make repro` has made here is not theirs.
        if (ROOT / name).is_file() and name != "dvc.lock":
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    shutil.copy2(params, target / "params.yaml")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "copy"]):
        subprocess.run(["git", *command], cwd=target, check=True)
    return target
