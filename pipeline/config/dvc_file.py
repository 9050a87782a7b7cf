"""dvc.yaml: what each stage reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config.yaml_io import read_yaml
from pipeline.utils.errors import UserError

DVC_FILE = "dvc.yaml"


def dvc_stages(root: Path) -> dict[str, dict[str, Any]]:
    """The description of each stage of the project in `root`, by name.

    Raises:
        UserError: the file cannot be read (`read_yaml`), or does not describe stages.
    """
    stages = read_yaml(root / DVC_FILE).get("stages")
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        raise UserError(f"{DVC_FILE}: not a file of stages; compare the committed file")
    return stages
