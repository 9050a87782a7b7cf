"""What a trial of one worker costs besides its training: in its Tune process, against a Ray Train run for each trial."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.corpus import a_trial, small
from bench.measure import ROOT, Row, compared, watched_mb
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import Session, session
from pipeline.config.load import load_execution, load_params
from pipeline.data.token_store import digest
from pipeline.identity.digests import WEIGHTS, backbone_digest, code_digest
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial

# Generated pairs, a third of which make a triplet with a contradiction.
PAIRS, QUICK_PAIRS = 600, 60


def run(quick: bool) -> list[Row]:
    """Grids of trials on one core each, both ways in turn, in a Ray that runs already."""
    rounds = 1 if quick else 3
    execution = load_execution(ROOT / "execution.yaml")
    alone = {"address": None, "workers": 1, "min_workers": None, "cpus_per_worker": 1.0, "device": "cpu"}
    cluster = execution.cluster.model_copy(update=alone)
    with tempfile.TemporaryDirectory() as name, session(cluster) as on:
        folder = Path(name)
        # The places are all taken until the end.
        trials = 1 if quick else 3 * on.concurrent
        tracker = server.open_tracker(execution.tracking, folder)
        grid = _grid(folder, QUICK_PAIRS if quick else PAIRS, trials)
        variants = {"in Tune": on, "ray train": replace(on, in_driver=False)}
        seconds: dict[str, list[float]] = {variant: [] for variant in variants}
        memory = dict.fromkeys(variants, 0.0)
        for number in range(rounds):
            for variant, at in variants.items():
                store = replace(grid[0], storage=folder / f"{variant} {number}")
                with watched_mb(os.getpid(), together=True) as peak:
                    seconds[variant].append(_overhead(store, grid[1], at, tracker))
                memory[variant] = max(memory[variant], *peak)
    return [
        compared(
            f"overhead of a trial of one worker, {trials} trials, {on.concurrent} at a time",
            "s",
            seconds.values(),
            list(memory.values()),
            note="baseline: a Ray Train run for each trial; Ray runs already; memory of all processes together",
        )
    ]


def _grid(folder: Path, pairs: int, trials: int) -> tuple[TrialStore, list[Trial]]:
    params = load_params(ROOT / "params.yaml")
    train, dev = small(folder, params, pairs)
    files = backbone_digest(params.model.backbone, params.model.revision)
    tokens = {"train_tokens": digest(train), "dev_tokens": digest(dev)}
    first = a_trial(params, batch_size=16, backbone_files=files, code=code_digest(WEIGHTS, params.objective), **tokens)
    store = TrialStore(train_tokens=train, dev_tokens=dev, storage=folder)
    return store, [first.model_copy(update={"seed": seed}) for seed in range(1, trials + 1)]


def _overhead(store: TrialStore, trials: list[Trial], on: Session, tracker: Tracker) -> float:
    """Seconds of a place that a trial takes, less those of its training loop."""
    parent = mlflow_runs.pipeline_run(tracker, store.storage.name, {}, {})
    start = time.monotonic()
    results = run_trials(trials, store, lambda: on, tracker, parent)
    wall = time.monotonic() - start
    if failures := [result.failure for result in results if result.outcome is None]:
        raise RuntimeError(f"a trial failed: {failures[0]}")
    training = sum(store.folder(trial).timing().seconds for trial in trials)
    places = min(on.concurrent, len(trials))
    return (wall * places - training) / len(trials)
