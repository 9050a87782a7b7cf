"""The grid of learning rates, batch sizes and seeds: its trials, result table and chosen point."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.params import ModelParams, ModelSection, ObjectiveParams, TrainParams, TuneParams
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.config.types import Section, Seed
from pipeline.data.token_sets import trial_digests
from pipeline.identity.digests import WEIGHTS, backbone_seen, code_digest
from pipeline.trials.trial import Trial, TrialResult
from pipeline.utils.errors import UserError


class Choice(Section):
    """The chosen point of the grid, as stored in best.yaml."""

    learning_rate: float
    batch_size: int
    mean_dev_score: float
    sd_dev_score: float | None
    seeds: tuple[Seed, ...]
    code: str
    """Digest of the code that trained the grid; DVC reruns stage train when it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that defines a trial except its point of the grid."""

    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    train_tokens: str
    dev_tokens: str
    backbone_files: str
    code: str

    @staticmethod
    def of(model: ModelSection, objective: ObjectiveParams, train: TrainParams, root: Path) -> Recipe:
        """The recipe of these parameters, the data in project folder `root`, and the running code.

        Raises:
            UserError: stage identity or tokenize has not run.
        """
        train_tokens, dev_tokens = trial_digests(root / TRAIN_TOKENS, root / DEV_TOKENS, objective.row_kind)
        return Recipe(
            model=model.encoder,
            objective=objective,
            train=train,
            train_tokens=train_tokens,
            dev_tokens=dev_tokens,
            backbone_files=backbone_seen(root),
            code=code_digest(WEIGHTS, objective),
        )

    def trial(self, learning_rate: float, batch_size: int, seed: int) -> Trial:
        """The trial at a point of the grid."""
        return Trial(
            model=self.model,
            objective=self.objective,
            train=self.train,
            learning_rate=learning_rate,
            batch_size=batch_size,
            seed=seed,
            train_tokens=self.train_tokens,
            dev_tokens=self.dev_tokens,
            backbone_files=self.backbone_files,
            code=self.code,
        )


def grid_trials(recipe: Recipe, tune: TuneParams) -> list[Trial]:
    """All trials of the grid; the seeds of a point are consecutive."""
    return [recipe.trial(rate, size, seed) for rate in tune.learning_rates for size in tune.batch_sizes for seed in tune.seeds]


def made_whole(results: Sequence[TrialResult], run: Callable[[list[Trial]], Sequence[TrialResult]]) -> list[TrialResult]:
    """The results, completed if necessary so that a point can be chosen.

    Early stopping acts on each seed separately, so perhaps no point has finished all its seeds. If so, `run` trains the missing
    seeds of the most promising point without a failure: the most finished seeds, then the highest mean score of these.

    Args:
        run: trains trials without early stopping; returns their results in order.
    """
    points = [runs for runs in _by_point(results).values() if not any(run.failure for run in runs)]
    if any(all(run.outcome for run in runs) for runs in points) or not points:
        return list(results)

    def promise(runs: Sequence[TrialResult]) -> tuple[int, float]:
        scores = [run.outcome.best_score for run in runs if run.outcome is not None]
        return len(scores), statistics.fmean(scores) if scores else 0.0

    missing = [run.trial for run in max(points, key=promise) if run.outcome is None]
    again = {result.trial.digest: result for result in run(missing)}
    return [again.get(result.trial.digest, result) for result in results]


def choose(results: Sequence[TrialResult]) -> Choice:
    """The point with the highest mean best development score over its seeds; on ties, the first in grid order.

    A point with a failed or stopped seed cannot be chosen, because its mean would cover fewer seeds than the others.

    Raises:
        UserError: no point has all its seeds.
    """
    best: Choice | None = None
    for (rate, size), runs in _by_point(results).items():
        scores = [run.outcome.best_score for run in runs if run.outcome is not None]
        if len(scores) < len(runs):
            continue
        mean = statistics.fmean(scores)
        if best is None or mean > best.mean_dev_score:
            best = Choice(
                learning_rate=rate,
                batch_size=size,
                mean_dev_score=mean,
                sd_dev_score=statistics.stdev(scores) if len(scores) > 1 else None,
                seeds=tuple(run.trial.seed for run in runs),
                code=runs[0].trial.code,
            )
    if best is None:
        reason = next((f"the first failure was: {run.failure}" for run in results if run.failure), "")
        raise UserError(
            "no point of the grid finished on all its seeds; "
            + (reason or "all were stopped early: raise tune.grace_scorings, or set tune.early_stopping: none (params.yaml)")
        )
    return best


def _by_point(results: Sequence[TrialResult]) -> dict[tuple[float, int], list[TrialResult]]:
    """(learning rate, batch size) → results of its seeds."""
    points: dict[tuple[float, int], list[TrialResult]] = {}
    for result in results:
        points.setdefault((result.trial.learning_rate, result.trial.batch_size), []).append(result)
    return points


def choice_yaml(choice: Choice) -> str:
    """The text of best.yaml."""
    return yaml.safe_dump(choice.model_dump(mode="json"), sort_keys=False)


def read_choice(path: Path) -> Choice:
    """Read best.yaml.

    Raises:
        UserError: the file is missing or is not what `choice_yaml` writes.
    """
    try:
        return Choice.model_validate_json(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not the choice of a grid ({type(error).__name__}); run `dvc repro` to make it") from None


def table_rows(results: Iterable[TrialResult]) -> list[dict[str, Any]]:
    """One row per trial; a failed or stopped trial has empty numbers and a reason. Equal runs give equal rows, except under early
    stopping, which depends on the order in which trials report."""
    return [
        {
            "learning_rate": r.trial.learning_rate,
            "batch_size": r.trial.batch_size,
            "seed": r.trial.seed,
            "status": "finished" if r.outcome else "stopped" if r.stopped else "failed",
            "best_dev_score": r.outcome.best_score if r.outcome else "",
            "best_step": r.outcome.best_step if r.outcome else "",
            "total_steps": r.outcome.total_steps if r.outcome else "",
            "trial": r.trial.digest,
            "failure": r.failure or r.stopped or "",
        }
        for r in results
    ]


def curves_rows(results: Iterable[TrialResult]) -> list[dict[str, Any]]:
    """Learning curves of all trials: trial, step, loss, learning_rate, dev_score."""
    return [
        {
            "trial": r.trial.name,
            **{key: entry[key] for key in ("step", "loss", "learning_rate")},
            "dev_score": entry["score"],
        }
        for r in results
        if r.outcome
        for entry in r.outcome.history
    ]


def to_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> str:
    """Rows with equal keys as CSV text; `header` names the columns if there are no rows."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
