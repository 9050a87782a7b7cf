"""A grid by number of trials, all trained before: the seconds, requests and memory of what a run and `gausscse gc` do with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from bench.corpus import a_trial
from bench.measure import ROOT, Row
from bench.registry import measured, mlflow_server
from pipeline.cluster import garbage
from pipeline.cluster.grid_search import run_trials
from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_params
from pipeline.models.model_dir import content_digest
from pipeline.report import results
from pipeline.storage.object_store import Storage
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.trials.recipe_run import MAIN, RecipeRun, write_tables
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Outcome, Recipe, Timing, Trial
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import write_sums

REPORTS = 300
"""Of each trial; every fifth has a score."""
WEIGHTS = 1_000_000
"""Bytes of each model."""


def run(quick: bool) -> list[Row]:
    """Rows for each size of the grid."""
    rows: list[Row] = []
    for count in (5,) if quick else (100, 1_000):
        with tempfile.TemporaryDirectory() as name, mlflow_server(Path(name)) as uri:
            tracker = server.open_tracker(TrackingParams(uri=uri, experiment="grid"), Path(name))
            rows += _rows(Path(name), tracker, count)
    return rows


def _rows(folder: Path, tracker: Tracker, count: int) -> list[Row]:
    """The storage is a folder that is used as a remote one."""
    first = a_trial(load_params(ROOT / "params.yaml"), batch_size=16)
    trials = [first.model_copy(update={"seed": seed}) for seed in range(1, count + 1)]
    remote = str(folder / "remote")
    stores = [
        TrialStore(train_tokens=folder, dev_tokens=folder, storage=folder / name, remote=remote) for name in ("made", "a", "b")
    ]
    for trial in trials:
        _finish(stores[0].folder(trial), trial)
    parent = mlflow_runs.pipeline_run(tracker, "grid", {}, {})
    recipe = RecipeRun(name=MAIN, recipe=Recipe(**first.model_dump(include=set(Recipe.model_fields))))

    def again(store: TrialStore) -> None:
        recipe.grid = run_trials(trials, store, _no_session, tracker, parent)

    work: dict[str, Callable[[], object]] = {
        "grid that MLflow does not know": partial(again, stores[1]),
        "grid that MLflow knows": partial(again, stores[2]),
        "tables of a grid": lambda: write_tables(folder, [recipe]),
        "report: trials of a grid": lambda: results._by_recipe(folder / "trials.csv", results.TrialRow),
        "report: curves of a grid": lambda: results._by_recipe(folder / "curves.csv", results.CurveRow, lambda _: False),
        "gausscse gc": lambda: garbage._verdicts(Storage.open(remote), {}, {}, 30),
    }
    return [_counted(f"{name}, {count} trials", one) for name, one in work.items()]


def _counted(name: str, work: Callable[[], object]) -> Row:
    """`measured`, with the number of requests to the storage."""
    asked: list[str] = []
    before = {method: getattr(Storage, method) for method in ("read", "write", "get", "entries")}

    def counting(method: str, storage: Storage, *arguments: object) -> object:
        asked.append(method)
        return before[method](storage, *arguments)

    for method in before:
        setattr(Storage, method, lambda *arguments, method=method: counting(method, *arguments))
    try:
        row = measured(name, work)
    finally:
        for method, function in before.items():
            setattr(Storage, method, function)
    return replace(row, note=f"{row.note}, {len(asked):,} to the storage")


def _no_session() -> NoReturn:
    raise RuntimeError("a trial was not found")


def _finish(folder: TrialFolder, trial: Trial) -> None:
    """Write what the first worker leaves, and send it."""
    best = folder.path / "best"
    best.mkdir()
    (best / "model.safetensors").write_bytes(trial.seed.to_bytes(4, "big") * (WEIGHTS // 4))
    write_sums(best)
    outcome = Outcome(
        digest=trial.digest,
        name=trial.name,
        best_step=REPORTS,
        score_name=trial.objective.score_name,
        best_score=50.0,
        weights=content_digest(best),
        total_steps=REPORTS,
        rows=1,
        same_source_pairs=0,
        history=[
            {"step": step, "loss": 1 / step, "learning_rate": 1e-4, "score": 50.0 - 1 / step if step % 5 == 0 else None}
            for step in range(1, REPORTS + 1)
        ],
    )
    folder.finish(outcome, Timing(seconds=1.0, workers=1, precision="fp32", versions={}, device="cpu", threads=1))
