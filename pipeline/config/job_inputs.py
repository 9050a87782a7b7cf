"""Tells a process that it is a Ray job of this project, and which data was uploaded for it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from pipeline.config.execution import ClusterParams
from pipeline.config.types import Section
from pipeline.utils.errors import UserError
from pipeline.utils.users import user_at_host

INPUTS_FILE = "inputs.json"
INPUTS_VARIABLE = "GAUSSCSE_INPUTS"
SENT_BACKBONE = "backbone"
"""The name of the backbone's files among a job's inputs."""


class Inputs(Section):
    """The data that was uploaded to the storage before a job was submitted, and the checkout that it came from."""

    objects: dict[str, str]
    """Path in the project, or SENT_BACKBONE → digest of its content."""
    commit: str
    versions: dict[str, str]
    owner: str = ""
    """`owner` of the checkout."""


def in_job() -> bool:
    """True if this process is the driver of a submitted Ray job."""
    # Ray sets it.
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def standing(params: ClusterParams) -> bool:
    """Whether the work is done on an existing cluster, not on this machine or on a private Ray of it."""
    return in_job() or params.address is not None


def inputs_of(root: Path) -> Inputs | None:
    """The inputs of the job that runs in `root`, from the submitting stage or from `make upload`; None if there are none.

    Raises:
        UserError: they cannot be read.
    """
    text, where = os.environ.get(INPUTS_VARIABLE), INPUTS_VARIABLE
    if text is None:
        file = root / INPUTS_FILE
        if not file.is_file():
            return None
        text, where = file.read_text(encoding="utf-8"), INPUTS_FILE
    try:
        return Inputs.model_validate_json(text)
    except ValidationError:
        raise UserError(f"{where}: not what `make upload` writes; run it again") from None


def owner(root: Path) -> str:
    """A short name for a user's checkout in the folder `root`; in a job, for that which it was sent from."""
    if in_job() and (sent := inputs_of(root)) is not None:
        return sent.owner
    return hashlib.sha256(f"{user_at_host()}:{root.resolve()}".encode()).hexdigest()[:8]


def installed(*more: str) -> dict[str, str]:
    """Versions on this machine of the packages that must agree everywhere, and of `more`, without build tags (+cpu)."""
    versions = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in ("ray", "torch", "transformers", "tokenizers", "safetensors", "numpy", "mlflow", "pyarrow", "duckdb", *more):
        try:
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            versions[name] = "missing"
    return versions


def git_commit(root: Path) -> str:
    """The commit of the checkout, or in a job the commit that its code was sent from; "unknown" outside git.

    It ends with "-dirty" if tracked files other than params.yaml and dvc.lock have changed; a run logs its parameters itself.
    """
    if in_job() and (sent := inputs_of(root)) is not None:
        return sent.commit

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!params.yaml", ":!dvc.lock")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
