"""What a Ray job of this project knows of itself: that it is one, and where the data is that its code was sent with."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from pipeline.errors import UserError
from pipeline.params import Section

INPUTS_FILE = "inputs.json"
INPUTS_VARIABLE = "GAUSSCSE_INPUTS"
# Ray sets it in the driver of a submitted job.
_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# Those whose versions have to be the same wherever a training run has a process.
_PACKAGES = ("ray", "torch", "transformers", "tokenizers", "safetensors", "numpy", "mlflow")


class Inputs(Section):
    """What was put into the storage before a job was sent, and from what checkout."""

    objects: dict[str, str]
    """Path in the project → digest of what is there."""
    commit: str
    versions: dict[str, str]


def in_job() -> bool:
    """Whether this process is the driver of a Ray job."""
    return _RAY_JOB in os.environ


def inputs_of(root: Path) -> Inputs | None:
    """What the job that runs in `root` was sent with: by the stage that submitted it, or by `make upload`; None for nothing.

    Raises:
        UserError: it cannot be read.
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


def commit_sent(root: Path) -> str | None:
    """The commit that a job's code is of; None where this is no job, or nothing was said."""
    sent = inputs_of(root) if in_job() else None
    return sent.commit if sent else None


def installed() -> dict[str, str]:
    """The versions here of what has to be the same everywhere, without what names a build (+cpu)."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _PACKAGES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def to_text(inputs: Inputs) -> str:
    """As inputs.json and the environment variable hold it."""
    return json.dumps(inputs.model_dump(), sort_keys=True)
