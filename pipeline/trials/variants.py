"""Variants of the main recipe: params.yaml with the changes that section `experiments` lists."""

# pyright: strict

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from pipeline.config.messages import Needless, explain, key_paths
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
_LONGEST_NAME = 80
_NO_METRIC = re.compile(r"[^\w./ -]", re.ASCII)


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


def variants_of(params: Params) -> list[Variant]:
    """The named variants, then every combination of the sweep, in the order of params.yaml; empty if none is asked for.

    A variant is the main recipe with its own keys changed, validated as a whole. If a variant names an objective, it keeps only
    those keys of the main recipe's section `objective` that this objective has, and must give any others itself. A combination
    of the sweep drops keys that only other objectives of the sweep have (simcse with a similarity). If the result equals another
    recipe, or one of its keys has no effect, the combination is not a variant, and `left_out` lists it.

    Raises:
        UserError: a key or value is wrong, two variants have the same name, or two variants are the same recipe.
    """
    experiments = params.experiments
    candidates = [(f"experiments.variants.{name}", name, overrides) for name, overrides in experiments.variants.items()]
    candidates += [
        ("experiments.sweep", _name_of(overrides), overrides) for _, overrides, why in _combinations(params) if why is None
    ]
    variants: list[Variant] = []
    recipes: dict[str, str] = {}
    for where, name, overrides in candidates:
        variant = Variant(name=name, overrides=overrides, params=_applied(params, overrides, where))
        # MLflow allows fewer characters in metric names; the names must differ there too.
        if any(_NO_METRIC.sub("_", other.name) == _NO_METRIC.sub("_", name) for other in variants):
            raise UserError(f"{PARAMS_FILE}: {where}: two variants are called {name!r} (or nearly so); rename or remove one")
        same = recipes.setdefault(_recipe(variant.params), name)
        if same != name:
            raise UserError(f"{PARAMS_FILE}: {where}: {name!r} is the same recipe as {same!r}; remove one of the two")
        variants.append(variant)
    return variants


def left_out(params: Params) -> list[str]:
    """One line for each combination of the sweep that is not a variant of its own."""
    return [f"{_name_of(asked)} is left out of the sweep: {why}" for asked, _, why in _combinations(params) if why is not None]


def _combinations(params: Params) -> list[tuple[dict[str, Any], dict[str, Any], str | None]]:
    """Each combination of the sweep, the part of it that its objective has, and why it needs no run (None if it does)."""
    sweep = params.experiments.sweep
    combinations = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())] if sweep else []
    fitting = [_fitting(combination, sweep) for combination in combinations]
    faults = [_needless(params, overrides) for overrides in fitting]
    sound = [overrides for overrides, fault in zip(fitting, faults, strict=True) if fault is None]
    whys: list[str | None] = []
    for k, (combination, overrides, fault) in enumerate(zip(combinations, fitting, faults, strict=True)):
        why = None
        if overrides != combination and overrides in fitting[:k]:
            foreign = " and no ".join(key.partition(".")[2] for key in combination if key not in overrides)
            why = f"objective {combination[_OBJECTIVE]} has no {foreign}"
        elif fault is not None:
            # If the sweep has no combination without that key, the key is a mistake and must be reported.
            without = {key: value for key, value in overrides.items() if key != fault[0]}
            why = " ".join(fault) if any(without.items() <= other.items() for other in sound) else None
        whys.append(why)
    return list(zip(combinations, fitting, whys, strict=True))


def _fitting(asked: dict[str, Any], sweep: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The combination without keys that only other objectives of the sweep have."""
    others = {key for name in sweep.get(_OBJECTIVE, ()) for key in objective_keys(name)}
    foreign = {f"objective.{key}" for key in others - objective_keys(asked.get(_OBJECTIVE))}
    return {key: value for key, value in asked.items() if key not in foreign}


def _needless(params: Params, overrides: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first key of a combination that has no effect in it, and why; None if all have one, or if something else is wrong."""
    try:
        Params.model_validate_json(json.dumps(_changed(params, overrides)))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            cause = detail.get("ctx", {}).get("error")
            if isinstance(cause, Needless) and (key := ".".join([*map(str, detail["loc"]), cause.key])) in overrides:
                return key, str(cause)
    return None


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
    raw["experiments"] = {"variants": {}, "sweep": {}}
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


def _recipe(params: Params) -> str:
    return sha256_json(params.model_dump(mode="json", include=set(SECTIONS)))


def _name_of(overrides: Mapping[str, Any]) -> str:
    """The name of a sweep variant, from its values: `same_premise=mask,mean_activation=tanh`."""
    last = [key.rpartition(".")[2] for key in overrides]
    parts = [
        f"{short if last.count(short) == 1 else key}={_shown(value)}"
        for (key, value), short in zip(overrides.items(), last, strict=True)
    ]
    name = ",".join(parts)
    # Folders have this name.
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 9]}-{sha256_json(dict(overrides))[:8]}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return "+".join(_shown(item) for item in items)
    if isinstance(value, float):
        return repr(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "_.+-" else "-" for c in text)
