"""A trial: one training run, identified by a digest of everything that determines its weights, and its results on disk.

This module does not import torch, so code that schedules trials or reads their outcomes need not load it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from pipeline.config.params import ModelParams, ObjectiveParams, TrainParams, TuneParams
from pipeline.config.types import Section
from pipeline.families.family import deciding_metrics
from pipeline.models.model_dir import content_digest
from pipeline.utils.atomic_io import read_json, sha256_json
from pipeline.utils.errors import UserError

# In a trial's folder: the outcome of a finished run, and the encoder with the highest development score. Until the trial is
# finished, each checkpoint holds its best encoder so far.
OUTCOME = "trial.json"
BEST = "best"
# The checkpoint to resume from until the trial is finished, and the one before it, used if the latest is damaged.
LATEST = "latest"
PREVIOUS = "previous"
# Why a trial cannot be trained; written instead of an outcome.
FAILURE = "failure.json"
# Why a trial was stopped early; written instead of an outcome. `latest/` stays, so the trial can be resumed.
STOPPED = "stopped.json"
# Asks the workers of a trial to write a checkpoint after the current step and exit.
PAUSE = "pause"
# Names the search of the worker that writes, for storages without locks.
WRITER = "writer"


class Trial(Section):
    """The model, data and settings of one training run. Trials with equal `digest` give the same model; only one needs to run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    learning_rate: float
    batch_size: int
    seed: int
    train_tokens: str
    """Digest of the training rows of the objective's kind (`pipeline.data.token_sets.rows_digest`)."""
    dev_tokens: str
    """The same of its development set."""
    backbone_files: str
    """Content digest of the backbone's weights, tokenizer and configuration (`pipeline.identity.digests.backbone_digest`)."""
    code: str
    """Digest of the code that decides the weights (`pipeline.identity.digests.code_digest`)."""

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
        flat: dict[str, str | int | float | bool | None] = {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        for section in ("model", "objective", "train"):
            for key, value in getattr(self, section).model_dump(mode="json").items():
                if key != "seeds":
                    flat[f"{section}.{key}"] = value
        return flat


def score_label(score_name: str) -> str:
    """A development score's name for people: dev PR-AUC for dev_pr_auc."""
    metric = score_name.removeprefix("dev_")
    return f"dev {found}" if (found := deciding_metrics().get(metric)) else score_name.replace("_", " ")


def long_score_label(score_name: str) -> str:
    """The same in full words: development PR-AUC."""
    return score_label(score_name).replace("dev ", "development ", 1)


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
    document. Those of one premise are true entailments among the negatives: kept (train.same_premise: keep), masked out (mask) or
    impossible to put in different batches (separate).
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
    reused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a trial took and on what: wall seconds of the training loop including scoring (all attempts), number of workers,
    precision, library versions, device, and torch threads of each worker.

    The last four are None if they were not recorded. The precision is fp32 if train.precision asks for bf16 but a worker's
    device does not support it. Precision and versions list every value that occurred over the attempts ("bf16 and fp32"). The
    device is that of the first worker in the last attempt, "cpu" or a GPU's name, and so are the threads.
    """

    seconds: float
    workers: int
    precision: str | None = None
    versions: Mapping[str, str] | None = None
    device: str | None = None
    threads: int | None = None

    def __str__(self) -> str:
        """A one-line summary for MLflow."""
        summary = f"trained by {self.workers} worker{'' if self.workers == 1 else 's'}"
        summary += f" of {self.threads} threads" if self.threads and self.threads > 1 else ""
        summary += f" on {self.device}" if self.device else ""
        summary += f" in {self.precision}" if self.precision else ""
        return summary + (
            f" with {', '.join(f'{name} {version}' for name, version in self.versions.items())}" if self.versions else ""
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The content of stopped.json: the deciding scoring, the reason, and the rule. Under another rule the stop does not count."""

    step: int
    best_score: float
    reason: str
    early_stopping: EarlyStopping


def stopped(folder: Path, rule: EarlyStopping | None) -> Stop | None:
    """The stop note of a trial; None unless the trial was stopped under exactly this rule."""
    if rule is None or not (folder / STOPPED).is_file():
        return None
    try:
        note = read_json(folder / STOPPED)
        note["early_stopping"] = EarlyStopping(**note["early_stopping"])
        stop = Stop(**note)
    except (UserError, TypeError, KeyError):
        # Written in another format: treat the trial as not stopped.
        return None
    return stop if stop.early_stopping == rule else None


def finished(folder: Path, trial: Trial) -> Outcome | None:
    """The trial's outcome; None unless the folder holds a finished, undamaged run of exactly this trial."""
    try:
        return _outcome(folder, trial)
    except UserError:
        return None


def unusable(folder: Path, trial: Trial) -> str | None:
    """What is wrong with the outcome in a folder; None if it is sound or missing."""
    try:
        _outcome(folder, trial)
    except UserError as error:
        return str(error)
    return None


def _outcome(folder: Path, trial: Trial) -> Outcome | None:
    if not (folder / OUTCOME).is_file():
        return None
    try:
        outcome = Outcome(**read_json(folder / OUTCOME)["outcome"])
    except (TypeError, KeyError, ValueError):
        raise UserError(f"{folder / OUTCOME}: another version of this program wrote it") from None
    if outcome.digest != trial.digest:
        raise UserError(f"{folder / OUTCOME}: it belongs to another trial ({outcome.digest})")
    if content_digest(folder / BEST) != outcome.weights:
        raise UserError(f"{folder / BEST}: its weights are not those that {OUTCOME} names; they belong to another run")
    check_best(folder / BEST, outcome.best_step, outcome.best_score, trial.objective.score_name)
    return outcome


def check_best(best: Path, step: int, score: float, score_name: str) -> None:
    """Check that the best encoder's own config.json agrees with the run's record.

    Args:
        score_name: the key of the development score in config.json.

    Raises:
        UserError: the step or the score differs.
    """
    config = read_json(best / "config.json")
    if (config.get("step"), config.get(score_name)) != (step, score):
        raise UserError(
            f"{best}: holds the model of step {config.get('step')} ({score_name} {config.get(score_name)}), "
            f"not that of step {step} ({score})"
        )


def weights_named(folder: Path) -> str | None:
    """The weights digest that the outcome in a folder names; None if it names none."""
    if not (folder / OUTCOME).is_file():
        return None
    try:
        named = read_json(folder / OUTCOME)["outcome"]["weights"]
    except (UserError, TypeError, KeyError):
        return None
    # The digest becomes part of a file name.
    return named if isinstance(named, str) and re.fullmatch("[0-9a-f]{64}", named) else None


def timing(folder: Path) -> Timing:
    """How long the finished trial in a folder took, and on what."""
    return Timing(**read_json(folder / OUTCOME)["timing"])
