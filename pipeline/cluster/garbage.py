"""`gausscse gc`: what in the storage is still referred to, and by whom; removes the rest.

Kept is what a version in the registry or this project refers to, and what was written or used in the last days. What a kept item
refers to is kept as well. Things that this program does not know are kept.
"""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.cluster.dispatch import left
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import inputs_of
from pipeline.config.params import Params
from pipeline.config.paths import EXPERIMENTS, MODELS, RELATIONS, SCORES, TRAIN, TRIALS, TUNE, WORK, home
from pipeline.models.model_dir import content_digest
from pipeline.registry.fetching import referred_to
from pipeline.storage.inventory import OBJECTS, UNKNOWN, Item, items_of, remove
from pipeline.storage.object_store import Storage, at_once, stamp_of
from pipeline.trials.store import RESULTS, weights_of
from pipeline.trials.trial import Recipe
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError

_PROJECT = "this project"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about an item, and the reason for it."""

    item: Item
    kept: bool
    why: str


def collect(params: Params, execution: Execution, root: Path, keep_days: int, *, delete: bool) -> Iterator[Verdict]:
    """Say of everything in the storage if it is kept. With `delete`, what is not kept has been removed by then.

    Args:
        root: the project's folder.
        keep_days: items that were written or used in so many days are kept.

    Raises:
        UserError: the storage or the registry cannot be reached, or the project's trials are not known. Nothing is removed then.
    """
    storage = Storage.open(execution.cluster.storage, home(root))
    models = referred_to()
    referred = {f"{TRIALS}/{digest}": by for digest, by in models.items()}
    names = [f"{TRIALS}/{digest}" for digest in _trials(params, root)]
    # What `gausscse submit --upload` has sent.
    if (sent := inputs_of(root)) is not None:
        names += [f"{OBJECTS}/{digest}" for digest in sent.objects.values()]
    verdicts = _verdicts(storage, dict.fromkeys(names, _PROJECT) | referred, models | _models(root), keep_days)
    for verdict in verdicts:
        yield verdict if verdict.kept or not delete else _removed(storage, verdict)


def _verdicts(storage: Storage, referred: dict[str, str], models: dict[str, str], keep_days: int) -> list[Verdict]:
    """Decide about everything in the storage.

    Args:
        referred: `<kind>/<name>` of what is referred to from outside the storage → by whom.
        models: the same for content digests of models.
    """
    now = time.time_ns()
    verdicts: list[Verdict] = []

    def decided(item: Item) -> tuple[Verdict, str | None, list[str | None]]:
        """The verdict, the model of a trial that is kept, and the objects that a kept item refers to."""
        why = _reason(storage, item, referred, models)
        day = time.strftime("%Y-%m-%d", time.localtime(item.used / 1e9))
        if why is None and now - item.used < keep_days * 86_400 * 10**9:
            why = f"used on {day}"
        if why is None:
            return Verdict(item, False, f"nothing refers to it; last used on {day}"), None, []
        digests = [storage.read(pointer) for pointer in item.pointers]
        if item.kind == WORK:
            # A damaged record is of no use.
            with suppress(UserError):
                record = left(storage, item.name.rpartition("/")[2], use=False)
                digests += record.outs.values() if record else []
        return Verdict(item, True, why), weights_of(storage, item.name) if item.kind == TRIALS else None, digests

    # What refers to others comes first; items of one kind do not refer to each other.
    for _, items in itertools.groupby(items_of(storage), key=lambda item: item.kind):
        for verdict, weights, digests in at_once(decided, items):
            verdicts.append(verdict)
            if weights:
                models.setdefault(weights, verdict.item.name)
            for digest in digests:
                referred.setdefault(f"{OBJECTS}/{digest}", verdict.item.name)
    return verdicts


def _reason(storage: Storage, item: Item, referred: dict[str, str], models: dict[str, str]) -> str | None:
    """Why an item is kept, however old it is; None if only its age can keep it."""
    if item.kind == UNKNOWN:
        return "gausscse does not know it"
    if item.kind in (SCORES, RELATIONS):
        # Their stamps name the model that they belong to.
        return models.get(storage.read(stamp_of(item.name)) or "")
    return referred.get(item.name)


def _removed(storage: Storage, verdict: Verdict) -> Verdict:
    """Remove an item, unless a run has begun to use it since it was listed."""
    item, stamp = verdict.item, stamp_of(verdict.item.name)
    if storage.entries(stamp).get(stamp) != item.files.get(stamp):
        return Verdict(item, True, "used just now")
    remove(storage, item, ("manifest", *RESULTS))
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
