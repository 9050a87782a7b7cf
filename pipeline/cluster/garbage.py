"""`gausscse gc`: what in the storage is still referred to, and by whom; removes the rest.

Kept is what one of these refers to: a version in the registry, this project's parameters and results, a job on the cluster, a run
that is going on, or the last days. What a kept thing refers to is kept as well. Things that this program does not know are kept.
"""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.cluster.jobs import LiveJob, live_jobs
from pipeline.cluster.stage_spec import STAGES, Work, read_record, work_name
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import inputs_of
from pipeline.config.params import Params
from pipeline.config.paths import EXPERIMENTS, MODELS, TRAIN, TUNE, home
from pipeline.models.model_dir import content_digest
from pipeline.registry.loading import referred_to
from pipeline.storage.inventory import OBJECTS, RELATIONS, SCORES, TRIALS, UNKNOWN, WORK, Inventory, Thing, remove
from pipeline.storage.object_store import Storage, at_once, digest_of
from pipeline.storage.uses import Removal, Run, going_on, over, stamp_of
from pipeline.trials.grid import Recipe
from pipeline.trials.removal import busy, remove_trial, strangers, weights_of
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError

_DAY = 86_400 * 1_000_000_000
_PROJECT = "this project"
_LOCKED = "a process holds its lock"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a thing, and why."""

    thing: Thing
    kept: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What is referred to from outside the storage: `<kind>/<name>`, or the content digest of a model, → by whom."""

    things: Mapping[str, str]
    models: Mapping[str, str]
    jobs: Sequence[LiveJob]

    @staticmethod
    def of(params: Params, execution: Execution, root: Path) -> _Named:
        """Ask the registry, the cluster and the project."""
        versions = referred_to()
        jobs = live_jobs(str(execution.cluster.address)) if execution.cluster.by_jobs else []
        things = {f"{TRIALS}/{digest}": by for digest, by in versions.items()}
        names = [f"{TRIALS}/{digest}" for digest in _trials(params, root)]
        names += _sent(root) + (_work(root) if execution.cluster.by_jobs else [])
        things |= {name: _PROJECT for name in names if name not in things}
        things |= {f"{OBJECTS}/{digest}": f"job {job.name}" for job in jobs for digest in (job.inputs or {}).values()}
        return _Named(things=things, models=versions | _models(root), jobs=jobs)


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


def collect(params: Params, execution: Execution, root: Path, keep_days: int, *, delete: bool) -> Iterator[Verdict]:
    """Say of everything in the storage whether it is kept. With `delete`, what is not kept has been removed by then.

    Args:
        root: the project's folder.
        keep_days: things that were written or used in so many days are kept.

    Raises:
        UserError: the storage, the registry or the cluster cannot be reached, or the project's trials cannot be named. Nothing is
            removed then.
    """
    storage = Storage.open(execution.cluster.storage, home(root))
    first = _verdicts(storage, _Named.of(params, execution, root), keep_days, time.time_ns())
    if not delete:
        yield from first
        return
    listed = {verdict.thing.name for verdict in first if not verdict.kept}
    removal = Removal(storage)
    with removal.of(listed):
        # Whatever a run has begun to use since then is kept now. A run that begins later sees the list and waits.
        for verdict in _verdicts(storage, _Named.of(params, execution, root), keep_days, removal.began):
            thing = verdict.thing
            if not verdict.kept and thing.name not in listed:
                verdict = Verdict(thing, True, "it came just now")
            elif not verdict.kept:
                removal.check()
                if not _removed(storage, thing):
                    verdict = Verdict(thing, True, _LOCKED)
            yield verdict
        _tidy(storage, keep_days, removal.began)


def _removed(storage: Storage, thing: Thing) -> bool:
    if thing.kind == TRIALS:
        return remove_trial(storage, thing)
    remove(storage, thing)
    return True


def _verdicts(storage: Storage, named: _Named, keep_days: int, now: int) -> list[Verdict]:
    inventory = Inventory.of(storage)
    at_work = _AtWork.of(storage, inventory, named.jobs, keep_days, now)
    models = dict(named.models)
    # Things that kept things refer to. What refers to others comes first.
    things = dict(named.things)
    verdicts: list[Verdict] = []
    for thing in inventory.things.values():
        why = _reason(storage, inventory, thing, things, models, at_work)
        unused = f"nothing refers to it; not used for {_days(now - inventory.used(thing))}"
        verdicts.append(Verdict(thing, why is not None, why or unused))
        if why is None:
            continue
        if thing.kind == TRIALS and (weights := weights_of(storage, thing.name)):
            models.setdefault(weights, thing.name)
        for digest in (*at_once(storage.read, thing.pointers), *_outs(storage, thing)):
            things.setdefault(f"{OBJECTS}/{digest}", thing.name)
    return verdicts


def _reason(
    storage: Storage,
    inventory: Inventory,
    thing: Thing,
    things: Mapping[str, str],
    models: Mapping[str, str],
    at_work: _AtWork,
) -> str | None:
    """Why a thing is kept; None if nothing keeps it."""
    if thing.kind == UNKNOWN:
        return "gausscse does not know it"
    if thing.kind == TRIALS and (names := strangers(thing)):
        return f"gausscse does not know its file {names[0]}"
    if thing.name in things:
        return things[thing.name]
    if thing.kind in (SCORES, RELATIONS) and stamp_of(thing.name) in inventory.stamps:
        model = storage.read(stamp_of(thing.name)) or ""
        if model in models:
            return models[model]
    if thing.kind == TRIALS and busy(storage, thing.name):
        return _LOCKED
    return at_work.reason(inventory.used(thing), thing.kind)


@dataclass(frozen=True, slots=True)
class _AtWork:
    """What is going on, and the last days."""

    runs: Sequence[Run]
    blind: Sequence[LiveJob]
    """Jobs of which it is not known what they will use."""
    keep_days: int
    now: int

    @staticmethod
    def of(storage: Storage, inventory: Inventory, jobs: Sequence[LiveJob], keep_days: int, now: int) -> _AtWork:
        runs = [*going_on(storage, inventory.runs, now), *(Run(f"job {job.name}", job.submitted) for job in jobs)]
        return _AtWork(runs, [job for job in jobs if job.inputs is None or job.waits], keep_days, now)

    def reason(self, used: int, kind: str = "") -> str | None:
        """Why something that was last used at a time is kept; None if it is not."""
        if (run := next((run for run in self.runs if used >= run.began), None)) is not None:
            return f"in use by {run.what}"
        if kind in (OBJECTS, WORK) and self.blind:
            return f"job {self.blind[0].name} may need it"
        if self.now - used < self.keep_days * _DAY:
            return f"used in the last {self.keep_days} days"
        return None


def _outs(storage: Storage, thing: Thing) -> list[str]:
    """The outputs that a record of finished work names; none if it is damaged, because it is then of no use."""
    if thing.kind != WORK:
        return []
    with suppress(UserError):
        record = read_record(storage, thing.key)
        return list(record.outs.values()) if record else []
    return []


def _days(nanoseconds: int) -> str:
    days = max(0, nanoseconds) // _DAY
    return f"{days} days" if days != 1 else "1 day"


def _tidy(storage: Storage, keep_days: int, now: int) -> None:
    """Remove stamps of things that do not exist, and what runs and removals that are over have left."""
    inventory = Inventory.of(storage)
    at_work = _AtWork.of(storage, inventory, (), keep_days, now)
    stamps = {stamp_of(name) for name in inventory.things}
    names = [name for name, entry in inventory.stamps.items() if name not in stamps and at_work.reason(entry.time) is None]
    for name in (*names, *over(inventory.runs, now), *over(inventory.removals, now)):
        storage.remove(name)
