"""A trial: one training run, named by the content of everything that determines its weights, and what it left behind.

No torch here: whoever drives trials or reads their outcomes need not load it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from pipeline.errors import UserError
from pipeline.files import check_sums, read_json, sha256_json
from pipeline.params import ModelParams, ObjectiveParams, Section, TrainParams

# In a trial's folder: the outcome of a finished run, and the encoder with the highest development PR-AUC.
OUTCOME = "trial.json"
BEST = "best"
# Why a trial cannot be trained, in place of an outcome.
FAILURE = "failure.json"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished trial; nothing in it differs between two equal runs.

    `history` has one entry a report: step, loss, learning_rate, dev_pr_auc (None where it was not scored).
    `same_premise_pairs` counts, over all batches, the ordered pairs of rows that share their premise: true entailments that stood
    among the negatives (train.same_premise: keep), were left out (mask) or could not be kept apart (separate).
    """

    digest: str
    name: str
    best_step: int
    best_dev_pr_auc: float
    total_steps: int
    triplets: int
    same_premise_pairs: int
    history: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a trial took: wall seconds of the loop with its scorings (all attempts), on how many workers."""

    seconds: float
    workers: int


def finished(folder: Path, trial: Trial) -> Outcome | None:
    """The outcome of the trial if its folder holds a finished, undamaged run of exactly this trial."""
    if not (folder / OUTCOME).is_file():
        return None
    try:
        outcome = Outcome(**read_json(folder / OUTCOME)["outcome"])
        check_sums(folder / BEST)
    except (UserError, TypeError, KeyError):
        return None
    return outcome if outcome.digest == trial.digest else None


def timing(folder: Path) -> Timing:
    """How long the finished trial in a folder took."""
    return Timing(**read_json(folder / OUTCOME)["timing"])
