"""Variants of the main recipe: params.yaml with some keys changed, as section `experiments` asks for them."""

# pyright: strict

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from pipeline.errors import UserError
from pipeline.files import sha256_json
from pipeline.key_errors import Needless, explain, key_paths
from pipeline.params import PARAMS_FILE, Params
from pipeline.trial import Trial

SECTIONS = ("model", "objective", "train", "tune")
"""Sections whose keys a variant may change."""
FIXED = ("model.backbone", "model.revision", "model.max_length")
"""Keys of these that it may not: the token stores hang on them."""
_LONGEST_NAME = 80
_NO_METRIC = re.compile(r"[^\w./ -]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A recipe to compare with the main one.

    Attributes:
        overrides: dotted key → value, as params.yaml gives them.
        params: all result keys, the overrides applied.
    """

    name: str
    overrides: dict[str, Any]
    params: Params


def variants_of(params: Params) -> list[Variant]:
    """The named variants, then every combination of the sweep, in the order of params.yaml; none where none is asked for.

    A combination in which a key of the sweep has no effect (simcse, and a similarity) is the same recipe as another: `left_out`
    names it.

    Raises:
        UserError: a key or value is wrong, a name is taken twice, or two variants are the same recipe.
    """
    asked = params.experiments
    wanted = [(f"experiments.variants.{name}", name, overrides) for name, overrides in asked.variants.items()]
    wanted += [("experiments.sweep", _name_of(overrides), overrides) for overrides, why in _combinations(params) if why is None]
    variants: list[Variant] = []
    recipes: dict[str, str] = {}
    for where, name, overrides in wanted:
        variant = Variant(name=name, overrides=overrides, params=_applied(params, overrides, where))
        # MLflow takes fewer characters in the names of metrics; they stay apart there too.
        if any(_NO_METRIC.sub("_", other.name) == _NO_METRIC.sub("_", name) for other in variants):
            raise UserError(f"{PARAMS_FILE}: {where}: two variants are called {name!r} (or like it); rename or remove one")
        same = recipes.setdefault(_recipe(variant.params), name)
        if same != name:
            raise UserError(f"{PARAMS_FILE}: {where}: {name!r} is the same recipe as {same!r}; remove one of the two")
        variants.append(variant)
    return variants


def left_out(params: Params) -> list[str]:
    """A line for each combination of the sweep that is no variant of its own."""
    return [f"{_name_of(overrides)} is left out of the sweep: {why}" for overrides, why in _combinations(params) if why]


def _combinations(params: Params) -> list[tuple[dict[str, Any], str | None]]:
    """Every combination of the sweep, and why it needs no run of its own, if it needs none."""
    sweep = params.experiments.sweep
    every = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())] if sweep else []
    faults = [_needless(params, overrides) for overrides in every]
    sound = [overrides for overrides, fault in zip(every, faults, strict=True) if fault is None]

    def stands_for(overrides: dict[str, Any], fault: tuple[str, str]) -> bool:
        """Whether the same without that key is there; if not, the key is a mistake to be told."""
        return any(all(other[key] == overrides[key] for key in sweep if key != fault[0]) for other in sound)

    return [
        (overrides, f"{fault[0]} {fault[1]}" if fault is not None and stands_for(overrides, fault) else None)
        for overrides, fault in zip(every, faults, strict=True)
    ]


def _needless(params: Params, overrides: Mapping[str, Any]) -> tuple[str, str] | None:
    """The key of a combination that has no effect in it, and why; None where all have, or something else is wrong."""
    try:
        Params.model_validate_json(json.dumps(_changed(params, overrides)))
    except ValidationError as error:
        for one in error.errors(include_url=False):
            cause = one.get("ctx", {}).get("error")
            if isinstance(cause, Needless) and (key := ".".join([*map(str, one["loc"]), cause.key])) in overrides:
                return key, str(cause)
    return None


def variant_of(trial: Trial, variants: Sequence[Variant]) -> str:
    """Name of the first variant that has the trial's recipe."""
    recipe = (trial.model, trial.objective, trial.train)
    return next(v.name for v in variants if (v.params.model, v.params.objective, v.params.train) == recipe)


def _applied(params: Params, overrides: Mapping[str, Any], where: str) -> Params:
    known = [key for key in key_paths(Params) if key.partition(".")[0] in SECTIONS and "." in key and key not in FIXED]
    for key in overrides:
        if key in FIXED:
            raise UserError(f"{PARAMS_FILE}: {where}: {key}: cannot vary, the token stores hang on it; set it above for all")
        if key not in known:
            raise UserError(f"{PARAMS_FILE}: {where}: {key}: no such key; a variant may change {', '.join(known)}")
    try:
        return Params.model_validate_json(json.dumps(_changed(params, overrides)))
    except ValidationError as error:
        raise UserError(f"{PARAMS_FILE}: {where}: {explain(error, Params, {})}") from None


def _changed(params: Params, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of params.yaml with the overrides, without experiments."""
    raw = params.model_dump(mode="json", by_alias=True)
    raw["experiments"] = {"variants": {}, "sweep": {}}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = value
    return raw


def _recipe(params: Params) -> str:
    return sha256_json(params.model_dump(mode="json", include=set(SECTIONS)))


def _name_of(overrides: Mapping[str, Any]) -> str:
    """`same_premise=mask,mean_activation=tanh`: a variant of the sweep by its own values."""
    last = [key.rpartition(".")[2] for key in overrides]
    parts = [
        f"{short if last.count(short) == 1 else key}={_shown(value)}"
        for (key, value), short in zip(overrides.items(), last, strict=True)
    ]
    name = ",".join(parts)
    # Folders are called so.
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 9]}-{sha256_json(dict(overrides))[:8]}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return "+".join(_shown(item) for item in items)
    if isinstance(value, float):
        return repr(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isalnum() or c in "_.+-" else "-" for c in text)
