# pyright: reportUnknownMemberType=false
"""A trial, what it reports and leaves, and what MLflow has of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mlflow.entities import Run

from pipeline.models.model_dir import content_digest
from pipeline.tracking.server import Tracker
from pipeline.training.trainer import Progress
from pipeline.trials.trial import OUTCOME, Outcome, Timing, Trial
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import write_json, write_sums
from tests.trial_of import plain_trial


def trial(seed: int = 1) -> Trial:
    return plain_trial(batch_size=32, seed=seed)


def entry(step: int, score: float | None = None) -> dict[str, Any]:
    """As in `Outcome.history`."""
    return {"step": step, "loss": 1.0 / step, "learning_rate": 1e-4, "score": score}


def progress(step: int, score: float | None = None) -> Progress:
    more: dict[str, Any] = {"total_steps": 30, "score_name": "dev_pr_auc", "best_score": None}
    return Progress(**entry(step, score), **more, row_kind="triplets", rows_per_second=100.0, seconds_left=None)


TIMING = Timing(seconds=1.0, workers=2, precision="fp32", versions={}, device="cpu", threads=1)
HISTORY = [entry(10), entry(20, 0.7), entry(30, 0.8)]


def outcome(of: Trial) -> Outcome:
    return Outcome(
        digest=of.digest,
        name=of.name,
        best_step=30,
        score_name="dev_pr_auc",
        best_score=0.8,
        weights="a" * 64,
        total_steps=30,
        rows=960,
        same_source_pairs=12,
        history=HISTORY,
    )


def points(tracker: Tracker, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in tracker.client.get_metric_history(run_id, key))


def finish(folder: Path, of: Trial) -> None:
    """What the first worker leaves when a trial is done."""
    (folder / BEST).mkdir()
    (folder / BEST / "model.safetensors").write_bytes(b"weights")
    write_json(folder / BEST / "config.json", {"step": 30, "dev_pr_auc": 0.8})
    write_sums(folder / BEST)
    done = replace(outcome(of), weights=content_digest(folder / BEST))
    write_json(folder / OUTCOME, {"outcome": asdict(done), "timing": asdict(TIMING)})


def child(tracker: Tracker, parent: str) -> Run:
    (run,) = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    return run
