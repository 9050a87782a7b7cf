"""A recipe and what became of it: the main recipe, or a variant of section experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.grid import Choice

Summary = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Set → metric → mean, min, max and, for more than one seed, sd."""

MAIN = "main recipe"
"""What the recipe of params.yaml is called where variants stand beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A final model."""

    seed: int
    trial: str
    """Digest of the trial."""
    best_dev_pr_auc: float
    best_step: int
    total_steps: int
    triplets: int
    same_premise_pairs: int
    seconds: float
    workers: int
    precision: str | None
    """In which it was trained; None where that was not noted."""
    device: str | None
    """What it was trained on; None if that was not noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A row of trials.csv."""

    learning_rate: float
    batch_size: int
    seed: int
    status: str
    best_dev_pr_auc: float | None
    best_step: str
    total_steps: str
    trial: str
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point of a learning curve."""

    step: int
    loss: float | None
    dev_pr_auc: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """See the module."""

    name: str
    overrides: Mapping[str, Any]
    """Keys in which it differs from params.yaml."""
    objective: str
    similarity: str
    uses_variance: bool
    choice: Choice | None
    failure: str | None
    """Why it has no result."""
    seeds: tuple[Seed, ...]
    failures: tuple[tuple[str, str], ...]
    """Trials that failed, and why."""
    trials: tuple[TrialRow, ...]
    summary: Summary
    per_seed: Mapping[int, Mapping[str, Mapping[str, float]]]
    """Seed → set → metric → value."""
    learning: Mapping[int, tuple[Step, ...]]
    """Seed → learning curve of its final model."""
    precision_recall: Mapping[tuple[str, int], tuple[tuple[float, float, float], ...]]
    """(set, seed) → recall, precision and threshold, recall falling."""
    scores: Path
    """Folder of the per-pair scores: SET/seed-N.parquet."""

    def numbers(self, set_name: str, metric: str) -> Mapping[str, float] | None:
        """Mean, min, max and sd of a metric; None where it is not defined or the recipe has no result."""
        return self.summary.get(set_name, {}).get(metric)

    def by_seed(self, set_name: str, metric: str) -> dict[int, float]:
        """The metric of each seed that has it."""
        return {seed: sets[set_name][metric] for seed, sets in self.per_seed.items() if metric in sets.get(set_name, {})}

    @property
    def shown_objective(self) -> str:
        """The objective with the similarity it was trained with."""
        return f"{self.objective} ({self.similarity})" if self.uses_variance else f"{self.objective} (cosine)"
