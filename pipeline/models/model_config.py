"""What config.json says of a model: its parameters, and what it can do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.params import ModelParams
from pipeline.models.relation_head import ScoreKind
from pipeline.utils.atomic_io import check_sums
from pipeline.utils.errors import UserError

FORMAT = "gausscse-encoder-1"


def read_config(path: Path) -> tuple[dict[str, Any], ModelParams]:
    """config.json of a model's folder, and the parameters in it.

    Raises:
        UserError: as `GaussianEncoder.from_pretrained`.
    """
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: no config.json here: name a folder written by save_pretrained")
    check_sums(path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if config.get("format") != FORMAT:
        raise UserError(f"{path}/config.json: format is {config.get('format')!r}, this version reads {FORMAT!r}")
    try:
        # Versions before 0.3 did not write what a trained model can do.
        if "trial" in config and "capabilities" not in config:
            raise KeyError("capabilities")
        return config, ModelParams.model_validate_json(json.dumps(config["model"]))
    except (KeyError, ValidationError):
        raise UserError(
            f"{path}/config.json: not one that this version knows (it reads those of 0.3); use the version of this program that "
            "wrote it, or train the model again"
        ) from None


def capabilities_of(config: Mapping[str, Any]) -> frozenset[str]:
    """What a model can do besides encoding and comparing (`ObjectiveSection.capabilities`)."""
    return frozenset(config.get("capabilities", ("direction",)))


def score_kind_of(config: Mapping[str, Any]) -> ScoreKind:
    """The similarity that a model was trained with."""
    return config.get("similarity", "kl")
