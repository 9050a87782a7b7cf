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
# Parameters added after the format was fixed, with the values that describe models saved before.
_LATER = {"pooling": "first", "towers": "heads", "mean_start": "random"}
# Keys of earlier versions. A model with both null is the same as one without them.
_GONE = ("log_var_init", "log_var_bound")


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
        section = {key: value for key, value in config["model"].items() if value is not None or key not in _GONE}
        return config, ModelParams.model_validate_json(json.dumps(_LATER | section))
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise UserError(
            f"{path}/config.json: its section model is not one that this version knows; use the version of this program that "
            "wrote it, or train the model again"
        ) from None


def capabilities_of(config: Mapping[str, Any]) -> frozenset[str]:
    """What a model can do besides encoding and comparing (`ObjectiveSection.capabilities`)."""
    return frozenset(_listed(config)[0])


def score_kind_of(config: Mapping[str, Any]) -> ScoreKind:
    """The similarity that a model was trained with."""
    return _listed(config)[1]


def _listed(config: Mapping[str, Any]) -> tuple[tuple[str, ...], ScoreKind]:
    if "capabilities" in config:
        return tuple(config["capabilities"]), config["similarity"]
    # Models that versions before 0.3 wrote name only the parameters of their objective, or nothing.
    if not (keys := config.get("trial", {}).get("objective")):
        return ("direction",), "kl"
    # Only now: an objective of a package may import encoders.
    from pipeline.config.objectives import kinds_named

    known = [kind.model_construct(**(dict.fromkeys(kind.model_fields) | keys)) for kind in kinds_named(keys.get("name"))]
    if known:
        return known[0].capabilities, known[0].gaussian_similarity or "cosine"
    # An objective that is not installed here.
    return ("direction",) if "similarity" in keys else (), keys.get("similarity", "cosine")
