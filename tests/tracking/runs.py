# pyright: reportUnknownMemberType=false
"""A trial, what it reports and leaves, and what MLflow has of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mlflow.entities import Run

from pipeline.config import load_params
from pipeline.files import write_json, write_sums
from pipeline.model_folder import content_digest
from pipeline.tracking import Tracker
from pipeline.training import Progress
from pipeline.trial import BEST, OUTCOME, Outcome, Trial

# Not conftest's: a test imports this from a process of its own, where no pytest is.
ROOT = Path(__file__).resolve().parents[2]


def trial(seed: int = 1) -> Trial:
    params = load_params(ROOT / "params.yaml")
    return Trial(
        model=params.model,
        objective=params.objective,
        train=params.train,
        learning_rate=1e-4,
        batch_size=32,
        seed=seed,
        train_tokens="t" * 64,
        dev_tokens="d" * 64,
        backbone_files="b" * 64,
        code="c" * 64,
    )


def entry(step: int, dev_pr_auc: float | None = None) -> dict[str, Any]:
    """As in `Outcome.history`."""
    return {"step": step, "loss": 1.0 / step, "learning_rate": 1e-4, "dev_pr_auc": dev_pr_auc}


def progress(step: int, dev_pr_auc: float | None = None) -> Progress:
    return Progress(**entry(step, dev_pr_auc), total_steps=30, best_dev_pr_auc=None, triplets_per_second=100.0, seconds_left=None)


HISTORY = [entry(10), entry(20, 0.7), entry(30, 0.8)]


def outcome(of: Trial) -> Outcome:
    return Outcome(
        digest=of.digest,
        name=of.name,
        best_step=30,
        best_dev_pr_auc=0.8,
        weights="a" * 64,
        total_steps=30,
        triplets=960,
        same_premise_pairs=12,
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
    write_json(folder / OUTCOME, {"outcome": asdict(done), "timing": {"seconds": 1.0, "workers": 2, "device": "cpu"}})


def child(tracker: Tracker, parent: str) -> Run:
    (run,) = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    return run
