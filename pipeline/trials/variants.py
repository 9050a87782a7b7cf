"""Variants of the main recipe: params.yaml with the changes that section `experiments` lists."""

# pyright: strict

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pipeline.config.messages import explain, key_paths
from pipeline.config.objectives import family_trained_by, objective_keys
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import sha256_json
from pipeline.utils.errors import UserError

SECTIONS = ("model", "objective", "train", "tune", "relation")
"""Sections whose keys a variant may change."""
FIXED = ("model.backbone", "model.revision", "model.max_length")
"""Keys of these sections that a variant may not change: the token stores depend on them."""
_OBJECTIVE = "objective.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A recipe to compare with the main one.

    Attributes:
        overrides: dotted key → value, as params.yaml gives them.
        params: all parameters, with the overrides applied.
    """

    name: str
    overrides: dict[str, Any]
    params: Params


def metric_name(name: str) -> str:
    """A name with `_` for the characters that MLflow does not allow in names of metrics."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


def variants_of(params: Params) -> list[Variant]:
    """The variants in the order of params.yaml; empty if none is asked for.

    A variant is the main recipe with its own keys changed, validated as a whole. If a variant names an objective, it keeps only
    those keys of the main recipe's section `objective` that this objective has, and must give any others itself.

    Raises:
        UserError: a key or value is wrong, two variants have the same name, or two variants are the same recipe.
    """
    variants: list[Variant] = []
    recipes: dict[str, str] = {}
    for name, overrides in params.experiments.variants.items():
        where = f"experiments.variants.{name}"
        variant = Variant(name=name, overrides=overrides, params=_applied(params, overrides, where))
        # The names must differ in MLflow, too.
        if any(metric_name(other.name) == metric_name(name) for other in variants):
            raise UserError(f"{PARAMS_FILE}: {where}: two variants are called {name!r} (or nearly so); rename or remove one")
        same = recipes.setdefault(sha256_json(variant.params.model_dump(mode="json", include=set(SECTIONS))), name)
        if same != name:
            raise UserError(f"{PARAMS_FILE}: {where}: {name!r} is the same recipe as {same!r}; remove one of the two")
        variants.append(variant)
    return variants


def variant_of(trial: Trial, variants: Sequence[Variant]) -> str:
    """Name of the first variant with the trial's recipe."""
    recipe = (trial.model, trial.objective, trial.train)
    return next(v.name for v in variants if (v.params.model.encoder, v.params.objective, v.params.train) == recipe)


def _applied(params: Params, overrides: Mapping[str, Any], where: str) -> Params:
    known = [key for key in key_paths(Params) if key.partition(".")[0] in SECTIONS and "." in key and key not in FIXED]
    for key in overrides:
        if key in FIXED:
            raise UserError(
                f"{PARAMS_FILE}: {where}: {key}: cannot vary: the token stores depend on it; set it outside experiments, for all"
            )
        if key not in known:
            raise UserError(f"{PARAMS_FILE}: {where}: {key}: no such key; a variant may change {', '.join(known)}")
    try:
        return Params.model_validate_json(json.dumps(_changed(params, overrides)))
    except ValidationError as error:
        raise UserError(f"{PARAMS_FILE}: {where}: {explain(error, Params, {})}") from None


def _changed(params: Params, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of params.yaml with the overrides, without experiments and without keys of the replaced objective."""
    raw = params.model_dump(mode="json", by_alias=True)
    raw["experiments"] = {"variants": {}}
    if _OBJECTIVE in overrides:
        kept_keys = objective_keys(overrides[_OBJECTIVE])
        if family_trained_by(overrides[_OBJECTIVE]) not in (family_trained_by(raw["objective"]["name"]), None):
            # A temperature for dot products is none for similarities: between these kinds, a variant names every key.
            kept_keys = frozenset[str]()
        raw["objective"] = {key: value for key, value in raw["objective"].items() if key in kept_keys}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = value
    return raw
