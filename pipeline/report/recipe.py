"""A recipe and its results. A recipe is the main one of params.yaml or a variant from its section experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.trials.grid import Choice
from pipeline.trials.trial import long_score_label

Summary = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Set → metric → mean, min, max and, for more than one seed, sd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A final model."""

    seed: int
    trial: str
    """The trial's digest."""
    best_dev_score: float
    best_step: int
    total_steps: int
    rows: int
    same_source_pairs: int
    seconds: float
    workers: int
    precision: str | None
    """The precision it was trained in; None if not recorded."""
    device: str | None
    """The device it was trained on; None if not recorded."""
    threads: int | None
    """torch threads of each worker; None if not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A row of trials.csv."""

    learning_rate: float
    batch_size: int
    seed: int
    status: str
    best_dev_score: float | None
    best_step: str
    total_steps: str
    trial: str
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point of a learning curve."""

    step: int
    loss: float | None
    dev_score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe and its results."""

    name: str
    overrides: Mapping[str, Any]
    """The keys in which the recipe differs from params.yaml."""
    objective: str
    similarity: str
    uses_variance: bool
    score_name: str
    """The development score that chose its models."""
    choice: Choice | None
    failure: str | None
    """Why the recipe has no result; None if it has one."""
    seeds: tuple[Seed, ...]
    failures: tuple[tuple[str, str], ...]
    """Each failed trial, with the reason."""
    trials: tuple[TrialRow, ...]
    summary: Summary
    per_seed: Mapping[int, Mapping[str, Mapping[str, float]]]
    """Seed → set → metric → value."""
    learning: Mapping[int, tuple[Step, ...]]
    """Seed → learning curve of its final model."""
    precision_recall: Mapping[tuple[str, int], tuple[tuple[float, float, float], ...]]
    """(set, seed) → points of recall, precision and threshold, by falling recall."""
    scores: Path
    """The folder of the per-pair scores, SET/seed-N.parquet."""

    def numbers(self, set_name: str, metric: str) -> Mapping[str, float] | None:
        """Mean, min, max and sd of a metric; None if it is not defined or the recipe has no result."""
        return self.summary.get(set_name, {}).get(metric)

    def by_seed(self, set_name: str, metric: str) -> dict[int, float]:
        """The metric for each seed that has it."""
        return {seed: sets[set_name][metric] for seed, sets in self.per_seed.items() if metric in sets.get(set_name, {})}

    @property
    def score_label(self) -> str:
        """The development score for people: development PR-AUC."""
        return long_score_label(self.score_name)

    @property
    def shown_objective(self) -> str:
        """The objective and the similarity it was trained with."""
        return f"{self.objective} ({self.similarity})"
