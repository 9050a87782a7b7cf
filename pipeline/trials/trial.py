"""A trial: one training run, identified by a digest of everything that determines its weights, and its results on disk.

This module does not import torch, so code that schedules trials or reads their outcomes need not load it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import ModelParams, ModelSection, ObjectiveParams, TrainParams, TuneParams
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.config.types import Section
from pipeline.data.token_sets import trial_digests
from pipeline.families.family import deciding_metrics
from pipeline.identity.digests import WEIGHTS, backbone_seen, code_digest
from pipeline.utils.atomic_io import sha256_json
from pipeline.utils.errors import counted

# In a trial's folder: the outcome of a finished run.
OUTCOME = "trial.json"
# The checkpoint to resume from until the trial is finished, and the one before it, used if the latest is damaged.
LATEST = "latest"
PREVIOUS = "previous"
# Why a trial cannot be trained; written instead of an outcome.
FAILURE = "failure.json"
# Why a trial was stopped early; written instead of an outcome. `latest/` stays, so the trial can be resumed.
STOPPED = "stopped.json"
# Asks the workers of a trial to write a checkpoint after the current step and exit.
PAUSE = "pause"


class Recipe(Section):
    """Everything that defines a trial except its point of the grid."""

    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    train_tokens: str
    """Digest of the training rows of the objective's kind (`pipeline.data.token_sets.rows_digest`)."""
    dev_tokens: str
    """The same of its development set."""
    backbone_files: str
    """Content digest of the backbone's weights, tokenizer and configuration (`pipeline.identity.digests.backbone_digest`)."""
    code: str
    """Digest of the code that decides the weights (`pipeline.identity.digests.code_digest`)."""

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
        return Trial(**dict(self), learning_rate=learning_rate, batch_size=batch_size, seed=seed)


class Trial(Recipe):
    """The model, data and settings of one training run. Trials with equal `digest` give the same model; only one needs to run."""

    learning_rate: float
    batch_size: int
    seed: int

    @property
    def digest(self) -> str:
        """Hex SHA-256. It excludes the list of seeds (`train.seeds`): this trial uses only its own seed."""
        return sha256_json(self.model_dump(mode="json", exclude={"train": {"seeds"}}))

    @property
    def name(self) -> str:
        """A short readable name for logs and runs."""
        return f"{self.objective.name}-lr{self.learning_rate:g}-b{self.batch_size}-s{self.seed}"

    def parameters(self) -> dict[str, str | int | float | bool | None]:
        """Flat parameters for MLflow and tables."""
        point = {key: getattr(self, key) for key in ("learning_rate", "batch_size", "seed")}
        raw = self.model_dump(mode="json", include={"model", "objective", "train"}, exclude={"train": {"seeds"}})
        return point | {f"{section}.{key}": value for section, keys in raw.items() for key, value in keys.items()}


def score_label(score_name: str) -> str:
    """A development score's name for people: selection PR-AUC for dev_pr_auc. It selects steps and points of the grid. Stage
    evaluate scores the finished model on the same rows, with its relation head: that is its dev PR-AUC."""
    metric = score_name.removeprefix("dev_")
    return f"selection {found}" if (found := deciding_metrics().get(metric)) else score_name.replace("_", " ")


def name_of(trial: Trial) -> str:
    """The trial's name, as a function."""
    return trial.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a finished trial; two equal runs give equal outcomes.

    `score_name` is the objective's development score (such as `dev_pr_auc`), by which the best step was chosen.
    `history` has one entry per report: step, loss, learning_rate, score (None if the report has no score).
    `rows` is the number of triplets, or of sentences of running text, that it trains on.
    `same_source_pairs` counts, over all batches, the ordered pairs of rows with the same premise, or of sentences of the same
    document. Those of one premise are true entailments among the negatives: kept (train.same_premise: keep) or masked out (mask).
    `weights` is the content digest of the model in `best/` (`pipeline.models.model_dir.content_digest`).
    """

    digest: str
    name: str
    best_step: int
    score_name: str
    best_score: float
    weights: str
    total_steps: int
    rows: int
    same_source_pairs: int
    history: list[dict[str, Any]]

    def __post_init__(self) -> None:
        # The grid compares scores, and no comparison with NaN holds: the first point would win.
        if not math.isfinite(self.best_score):
            raise ValueError(f"{self.name}: the best development score is {self.best_score}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How a trial ended: its outcome, the reason it failed, or the reason it was stopped early."""

    trial: Trial
    outcome: Outcome | None
    failure: str | None = None
    stopped: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the trial is to be trained: neither finished nor stopped early."""
        return self.outcome is None and self.stopped is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a trial took and on what: wall seconds of the training loop including scoring (all attempts), number of workers,
    precision, library versions, device, and torch threads of each worker.

    The precision is fp32 if train.precision asks for bf16 but a worker's device does not support it. Precision and versions list
    every value that occurred over the attempts ("bf16 and fp32"). The device is that of the first worker in the last attempt,
    "cpu" or a GPU's name, and so are the threads.
    """

    seconds: float
    workers: int
    precision: str
    versions: Mapping[str, str]
    device: str
    threads: int

    def __str__(self) -> str:
        """A one-line summary for MLflow."""
        threads = f" of {self.threads} threads" if self.threads > 1 else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"trained by {counted(self.workers, 'worker')}{threads} on {self.device} in {self.precision} with {versions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping:
    """Successive halving (ASHA) among trials that differ only in learning rate and batch size."""

    grace_scorings: int
    """Development scorings before a trial may be stopped, not counting the score of the untrained model."""
    reduction_factor: int
    """One trial in this many goes on at each rung; rungs are at grace_scorings times the powers of this number."""

    @staticmethod
    def of(tune: TuneParams) -> EarlyStopping | None:
        """The rule that section `tune` asks for; None if it asks for no early stopping."""
        if tune.early_stopping == "none":
            return None
        return EarlyStopping(grace_scorings=tune.grace_scorings, reduction_factor=tune.reduction_factor)
