"""`gausscse gc`: what in the storage is still referred to, and by whom; removes the rest.

Kept is what a version in the registry or this project refers to, and what was written or used in the last days. What a kept thing
refers to is kept as well. Things that this program does not know are kept.
"""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.cluster.stage_spec import STAGES, Work, read_record, work_name
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import inputs_of
from pipeline.config.params import Params
from pipeline.config.paths import EXPERIMENTS, MODELS, RELATIONS, SCORES, TRAIN, TRIALS, TUNE, WORK, home
from pipeline.models.model_dir import content_digest
from pipeline.registry.loading import referred_to
from pipeline.storage.inventory import OBJECTS, UNKNOWN, Thing, remove, things_of
from pipeline.storage.object_store import Storage, at_once, digest_of, stamp_of
from pipeline.trials.grid import Recipe
from pipeline.trials.store import RESULTS, unheld, weights_of
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError

_DAY = 86_400 * 1_000_000_000
_PROJECT = "this project"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a thing, and the reason for it."""

    thing: Thing
    kept: bool
    why: str


def collect(params: Params, execution: Execution, root: Path, keep_days: int, *, delete: bool) -> Iterator[Verdict]:
    """Say of everything in the storage if it is kept. With `delete`, what is not kept has been removed by then.

    Args:
        root: the project's folder.
        keep_days: things that were written or used in so many days are kept.

    Raises:
        UserError: the storage or the registry cannot be reached, or the project's trials are not known. Nothing is removed then.
    """
    storage = Storage.open(execution.cluster.storage, home(root))
    models = referred_to()
    things = {f"{TRIALS}/{digest}": by for digest, by in models.items()}
    names = [f"{TRIALS}/{digest}" for digest in _trials(params, root)]
    names += _sent(root) + (_work(root) if execution.cluster.by_jobs else [])
    verdicts = _verdicts(storage, dict.fromkeys(names, _PROJECT) | things, models | _models(root), keep_days)
    for verdict in verdicts:
        yield verdict if verdict.kept or not delete else _removed(storage, verdict)


def _verdicts(storage: Storage, things: dict[str, str], models: dict[str, str], keep_days: int) -> list[Verdict]:
    """Decide about everything in the storage.

    Args:
        things: `<kind>/<name>` of what is referred to from outside the storage → by whom.
        models: the same for content digests of models.
    """
    now = time.time_ns()
    verdicts: list[Verdict] = []
    # What refers to others comes first.
    for thing in things_of(storage):
        why = _reason(storage, thing, things, models)
        day = time.strftime("%Y-%m-%d", time.localtime(thing.used / 1e9))
        if why is None and now - thing.used < keep_days * _DAY:
            why = f"used on {day}"
        verdicts.append(Verdict(thing, why is not None, why or f"nothing refers to it; last used on {day}"))
        if why is None:
            continue
        if thing.kind == TRIALS and (weights := weights_of(storage, thing.name)):
            models.setdefault(weights, thing.name)
        for digest in (*at_once(storage.read, thing.pointers), *_outs(storage, thing)):
            things.setdefault(f"{OBJECTS}/{digest}", thing.name)
    return verdicts


def _reason(storage: Storage, thing: Thing, things: dict[str, str], models: dict[str, str]) -> str | None:
    """Why a thing is kept, however old it is; None if only its age can keep it."""
    if thing.kind == UNKNOWN:
        return "gausscse does not know it"
    if thing.kind in (SCORES, RELATIONS):
        # Their stamps name the model that they belong to.
        return models.get(storage.read(stamp_of(thing.name)) or "")
    return things.get(thing.name)


def _outs(storage: Storage, thing: Thing) -> list[str]:
    """The outputs that a record of finished work names; none if it is damaged, because it is then of no use."""
    if thing.kind != WORK:
        return []
    with suppress(UserError):
        record = read_record(storage, thing.name.rpartition("/")[2])
        return list(record.outs.values()) if record else []
    return []


def _removed(storage: Storage, verdict: Verdict) -> Verdict:
    """Remove a thing, unless a run has begun to use it since it was listed."""
    thing, stamp = verdict.thing, stamp_of(verdict.thing.name)
    if storage.entries(stamp).get(stamp) != thing.files.get(stamp):
        return Verdict(thing, True, "used just now")
    with unheld(storage, thing.name) if thing.kind == TRIALS else nullcontext(True) as free:
        if not free:
            return Verdict(thing, True, "a process holds its lock")
        remove(storage, thing, ("manifest", *RESULTS))
    return verdict


def _trials(params: Params, root: Path) -> set[str]:
    """The trials that `dvc repro` would use, and those of the results that are here."""
    digests: set[str] = set()
    for recipe_params in (params, *(variant.params for variant in variants_of(params))):
        tune, train = recipe_params.tune, recipe_params.train
        recipe = Recipe.of(recipe_params.model, recipe_params.objective, train, root)
        # Any point may be chosen and get the final seeds.
        seeds = dict.fromkeys((*tune.seeds, *train.seeds))
        points = itertools.product(tune.learning_rates, tune.batch_sizes, seeds)
        digests |= {recipe.trial(rate, size, seed).digest for rate, size, seed in points}
    for folder in (TUNE, TRAIN, EXPERIMENTS):
        if (table := root / folder / "trials.csv").is_file():
            with table.open(encoding="utf-8", newline="") as rows:
                digests |= {row["trial"] for row in csv.DictReader(rows) if row.get("trial")}
    return digests


def _models(root: Path) -> dict[str, str]:
    models: dict[str, str] = {}
    for folder in sorted((root / MODELS).glob("seed-*")):
        # A damaged model is made again.
        with suppress(UserError):
            models[content_digest(folder)] = f"{MODELS}/{folder.name} of {_PROJECT}"
    return models


def _sent(root: Path) -> list[str]:
    """What `gausscse submit --upload` has sent."""
    sent = inputs_of(root)
    return [f"{OBJECTS}/{digest}" for digest in sent.objects.values()] if sent else []


def _work(root: Path) -> list[str]:
    """The inputs of the stages that run as jobs, and what such jobs have left for this project."""
    digests: dict[str, str] = {}
    names: list[str] = []
    for stage in STAGES:
        work = Work.of(stage, root)
        here = [path for path in (*work.inputs, *work.also_read) if (root / path).exists()]
        digests |= {path: digest_of(root / path) for path in here if path not in digests}
        if set(work.inputs) <= set(here):
            names.append(work_name(work.key(digests, root)))
    return [*names, *(f"{OBJECTS}/{digest}" for digest in digests.values())]
