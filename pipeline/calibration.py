"""The threshold at which a model calls a pair an entailment, as it is kept with the model (thresholds.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.model_folder import THRESHOLDS
from pipeline.params import Section


class Calibration(Section):
    """Where the threshold is, and what it was found on."""

    threshold: float
    entailment_if: Literal[">=", ">"]
    swept_on: str
    """Name of the set whose accuracy it makes highest (DESIGN section 2, Evaluation)."""
    pairs: str
    """Content digest of the token store of that set."""
    accuracy: float
    """On that set, in per cent."""


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a model's folder; None where it has none.

    Raises:
        UserError: the file is not one that `Calibration` describes.
    """
    file = folder / THRESHOLDS
    if not file.is_file():
        return None
    try:
        return Calibration.model_validate_json(json.dumps(read_json(file)["entailment"]))
    except (KeyError, TypeError, ValidationError):
        raise UserError(f"{file}: not a threshold that this version knows") from None


def to_text(calibration: Calibration) -> str:
    """What thresholds.json holds."""
    return json.dumps({"entailment": calibration.model_dump(mode="json")}, indent=2, sort_keys=True) + "\n"
