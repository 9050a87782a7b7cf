"""The entailment threshold that is kept with a model (thresholds.json)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from pipeline.config.types import Section
from pipeline.data.decision import EntailmentIf
from pipeline.models.model_dir import THRESHOLDS
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import UserError


class Calibration(Section):
    """The threshold and the set on which it was found."""

    threshold: float
    entailment_if: EntailmentIf
    swept_on: str
    """Name of the set on which the threshold gives the highest accuracy."""
    pairs: str
    """Content digest of the token store of that set."""
    accuracy: float
    """Accuracy on that set, in percent."""


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration in a model's folder; None if there is none.

    Raises:
        UserError: the file does not match `Calibration`.
    """
    file = folder / THRESHOLDS
    if not file.is_file():
        return None
    try:
        return Calibration.model_validate_json(json.dumps(read_json(file)["entailment"]))
    except (KeyError, TypeError, ValidationError):
        raise UserError(f"{file}: not a threshold that this version can read") from None


def rule_of(calibration: Calibration | None) -> tuple[float | None, EntailmentIf]:
    """The threshold, None if there is none, and the rule of a score that equals it."""
    return (None, ">=") if calibration is None else (calibration.threshold, calibration.entailment_if)


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write thresholds.json into a model's folder; not into its sums."""
    write_json(folder / THRESHOLDS, {"entailment": calibration.model_dump(mode="json")})
