"""A trial: one training run, named by the content of everything that determines its weights, and what it left behind.

No torch here: whoever drives trials or reads their outcomes need not load it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from pipeline.errors import UserError
from pipeline.files import read_json, sha256_json
from pipeline.model_folder import content_digest
from pipeline.params import ModelParams, ObjectiveParams, Section, TrainParams, TuneParams

# In a trial's folder: the outcome of a finished run, and the encoder with the highest development PR-AUC. While the trial is not
# finished, that encoder is in each checkpoint.
OUTCOME = "trial.json"
BEST = "best"
# What to resume from while the trial is not finished, and the checkpoint before it, for when that one is damaged.
LATEST = "latest"
PREVIOUS = "previous"
# Why a trial cannot be trained, in place of an outcome.
FAILURE = "failure.json"
# Why a trial was ended before its end, in place of an outcome; `latest/` stays, so that it can be taken up again.
STOPPED = "stopped.json"
# Asks the workers of a trial to write a checkpoint after the step they are at, and end.
PAUSE = "pause"


class Trial(Section):
    """What is trained on what. Two trials with the same `digest` give the same model, so one of them need not run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    learning_rate: float
    batch_size: int
    seed: int
    train_tokens: str
    """Content digest of the training token store."""
    dev_tokens: str
    backbone_files: str
    """Content digest of the backbone's weights, tokenizer and configuration (`pipeline.identity.backbone_digest`)."""
    code: str
    """Digest of the code that decides the weights (`pipeline.identity.code_digest`)."""

    @property
    def digest(self) -> str:
        """Hex SHA-256; the list of seeds to train is left out, because this trial is one of them."""
        return sha256_json(self.model_dump(mode="json", exclude={"train": {"seeds"}}))

    @property
    def name(self) -> str:
        """Short and readable, for logs and run names."""
        return f"{self.objective.name}-lr{self.learning_rate:g}-b{self.batch_size}-s{self.seed}"

    def parameters(self) -> dict[str, str | int | float | bool | None]:
        """Flat parameters, for MLflow and tables."""
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


def name_of(trial: Trial) -> str:
    """A trial's own name."""
    return trial.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished trial; nothing in it differs between two equal runs.

    `history` has one entry a report: step, loss, learning_rate, dev_pr_auc (None where it was not scored).
    `same_premise_pairs` counts, over all batches, the ordered pairs of rows that share their premise: true entailments that stood
    among the negatives (train.same_premise: keep), were left out (mask) or could not be kept apart (separate).
    `weights` names the model of `best/` by content (`pipeline.model_folder.content_digest`).
    """

    digest: str
    name: str
    best_step: int
    best_dev_pr_auc: float
    weights: str
    total_steps: int
    triplets: int
    same_premise_pairs: int
    history: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a trial took: wall seconds of the loop with its scorings (all attempts), on how many workers, in which precision,
    with which versions of the libraries that compute.

    The last three are None where they were not noted. The precision is fp32 where train.precision asks for bf16 and a worker's
    device has none. Precision and versions name all that the attempts had ("bf16 and fp32"). The device is that of the first
    worker in the last attempt: "cpu" or a GPU's name.
    """

    seconds: float
    workers: int
    precision: str | None = None
    versions: Mapping[str, str] | None = None
    device: str | None = None

    def __str__(self) -> str:
        """For MLflow."""
        said = f"trained by {self.workers} workers"
        said += f" on {self.device}" if self.device else ""
        said += f" in {self.precision}" if self.precision else ""
        return said + (f" with {', '.join(f'{name} {held}' for name, held in self.versions.items())}" if self.versions else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping:
    """Successive halving of the trials that differ in nothing but learning rate and batch size (ASHA)."""

    grace_scorings: int
    """Scorings of the development set before a trial can be stopped; that of the untrained model does not count."""
    reduction_factor: int
    """Of how many trials one goes on at each rung; rungs are at grace_scorings times the powers of this."""

    @staticmethod
    def of(tune: TuneParams) -> EarlyStopping | None:
        """What section `tune` asks for; None for none."""
        if tune.early_stopping == "none":
            return None
        return EarlyStopping(grace_scorings=tune.grace_scorings, reduction_factor=tune.reduction_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What stopped.json says: the scoring that decided, why, and under which rule (another rule does not honour it)."""

    step: int
    best_dev_pr_auc: float
    reason: str
    early_stopping: EarlyStopping


def stopped(folder: Path, rule: EarlyStopping | None) -> Stop | None:
    """The note of a trial that was stopped under exactly this rule."""
    if rule is None or not (folder / STOPPED).is_file():
        return None
    try:
        note = read_json(folder / STOPPED)
        note["early_stopping"] = EarlyStopping(**note["early_stopping"])
        stop = Stop(**note)
    except (UserError, TypeError, KeyError):
        # Of another format: the trial is taken up again.
        return None
    return stop if stop.early_stopping == rule else None


def failure(folder: Path) -> str | None:
    """Why the trial in a folder cannot be trained."""
    return str(read_json(folder / FAILURE)["reason"]) if (folder / FAILURE).is_file() else None


def finished(folder: Path, trial: Trial) -> Outcome | None:
    """The outcome of the trial if its folder holds a finished, undamaged run of exactly this trial."""
    try:
        return _outcome(folder, trial)
    except UserError:
        return None


def unusable(folder: Path, trial: Trial) -> str | None:
    """What is wrong with the outcome in a folder; None where it is sound or there is none."""
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
    except (TypeError, KeyError):
        raise UserError(f"{folder / OUTCOME}: another version of this program wrote it") from None
    if outcome.digest != trial.digest:
        raise UserError(f"{folder / OUTCOME}: it is of another trial ({outcome.digest})")
    if content_digest(folder / BEST) != outcome.weights:
        raise UserError(f"{folder / BEST}: its weights are not those that {OUTCOME} names; they are of another run")
    check_best(folder / BEST, outcome.best_step, outcome.best_dev_pr_auc)
    return outcome


def check_best(best: Path, step: int, score: float) -> None:
    """Compare what the best encoder of a run says about itself with the run's own record.

    Raises:
        UserError: it has another step or another development PR-AUC.
    """
    config = read_json(best / "config.json")
    if (config.get("step"), config.get("dev_pr_auc")) != (step, score):
        raise UserError(
            f"{best}: holds the model of step {config.get('step')} (development PR-AUC {config.get('dev_pr_auc')}), "
            f"not that of step {step} ({score})"
        )


def weights_named(folder: Path) -> str | None:
    """The digest of the weights that the outcome in a folder names; None if it names none."""
    if not (folder / OUTCOME).is_file():
        return None
    try:
        named = read_json(folder / OUTCOME)["outcome"]["weights"]
    except (UserError, TypeError, KeyError):
        return None
    # It becomes part of a file's name.
    return named if isinstance(named, str) and re.fullmatch("[0-9a-f]{64}", named) else None


def timing(folder: Path) -> Timing:
    """How long the finished trial in a folder took."""
    return Timing(**read_json(folder / OUTCOME)["timing"])
