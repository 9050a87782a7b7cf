"""dvc.yaml: what each stage reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.utils.errors import UserError

DVC_FILE = "dvc.yaml"


def dvc_stages(root: Path) -> dict[str, dict[str, Any]]:
    """The description of each stage of the project in `root`, by name.

    Raises:
        UserError: there is no dvc.yaml, or it does not describe stages.
    """
    try:
        stages = yaml.safe_load((root / DVC_FILE).read_text(encoding="utf-8"))["stages"]
    except FileNotFoundError:
        raise UserError(f"{DVC_FILE}: no such file; run from the project root") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        stages = None
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        raise UserError(f"{DVC_FILE}: not a YAML file of stages; compare the committed file")
    return stages
