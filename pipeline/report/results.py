"""Reads the result files into one object, which holds everything the report shows.

A file that is missing, or not as its stage writes it, gives an error of one line.
"""

from __future__ import annotations

import csv
import json
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.params import Params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, TRAIN, TUNE
from pipeline.config.types import Section
from pipeline.data.decision import EntailmentIf
from pipeline.families.family import dev_sets
from pipeline.trials.grid import Choice
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError

_PACKAGES = ("torch", "transformers", "tokenizers", "ray", "mlflow", "dvc", "pyarrow", "numpy", "scikit-learn", "plotly")

Points = Sequence[tuple[float, float]]
"""(x, y) of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A final model; precision, device and threads are None if they were not recorded."""

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
    device: str | None
    threads: int | None
    """torch threads of each worker."""


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
class Recipe:
    """The main recipe of params.yaml or a variant from its section experiments, with its results."""

    name: str
    overrides: Mapping[str, Any]
    """The keys in which the recipe differs from params.yaml."""
    objective: str
    similarity: str
    score_name: str
    """The development score that chose its models."""
    failure: str | None
    """Why the recipe has no result; None if it has one."""
    choice: Choice | None
    seeds: tuple[Seed, ...]
    trials: tuple[TrialRow, ...]
    summary: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Set → metric → mean, min, max and, for more than one seed, sd; empty without a result."""
    per_seed: Mapping[int, Mapping[str, Mapping[str, float]]]
    """Seed → set → metric → value."""
    learning: Mapping[str, Mapping[int, Points]]
    """Column of curves.csv ("dev_score", "loss") → seed → its value at each step, of the final models."""
    precision_recall: Mapping[tuple[str, int], Points]
    """(set, seed) → recall and precision."""
    scores: Path
    """The folder of the scores of single rows, SET/seed-N.parquet."""

    def mean(self, set_name: str, metric: str) -> float | None:
        """Mean over the seeds; None if the metric is not defined or the recipe has no result."""
        return self.summary.get(set_name, {}).get(metric, {}).get("mean")

    def by_seed(self, set_name: str, metric: str) -> dict[int, float]:
        """The metric for each seed that has it."""
        return {seed: sets[set_name][metric] for seed, sets in self.per_seed.items() if metric in sets.get(set_name, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything the report shows."""

    recipes: tuple[Recipe, ...]
    """The main recipe, then the variants in the order of params.yaml."""
    hypothesis_only: Mapping[str, Mapping[str, float]]
    """Set → metrics of the classifier that never sees the premise; empty if the training data have only one class."""
    registered: Mapping[str, Any]
    profile: Mapping[str, Any]
    params: Mapping[str, Any]
    """The sections of params.yaml to show, by name."""
    entailment_if: EntailmentIf
    examples: Literal["full", "ids", "none"]
    versions: Mapping[str, str]
    prepared: Path

    @property
    def main(self) -> Recipe:
        """The recipe of params.yaml."""
        return self.recipes[0]

    def sets_with(self, metric: str) -> list[str]:
        """The sets for which the main recipe has a metric, those of development first."""
        names = [name for name, numbers in self.main.summary.items() if metric in numbers]
        return sorted(names, key=lambda name: (name not in dev_sets(), name))

    def test_sets_with(self, metric: str) -> list[str]:
        """The same without the sets of development, unless there are no others."""
        names = self.sets_with(metric)
        return [name for name in names if name not in dev_sets()] or names


def read_results(params: Params, shown: Mapping[str, Section], root: Path) -> Results:
    """Read the outputs of the earlier stages from a project folder.

    Args:
        shown: the sections of params.yaml that the report lists, by name.

    Raises:
        UserError: a file is missing or damaged.
    """
    profile = read_json(root / PROFILE)
    with contents_of(root / PROFILE):
        hypothesis_only = profile.get("hypothesis_only", {})
    return Results(
        recipes=(
            *_recipes(root / TUNE, root / TRAIN, root / EVALUATE),
            *_recipes(root / EXPERIMENTS, root / EXPERIMENTS, root / EXPERIMENTS),
        ),
        hypothesis_only=hypothesis_only,
        registered=read_json(root / REGISTER),
        profile=profile,
        params={name: section.model_dump(mode="json") for name, section in shown.items()},
        entailment_if=params.evaluate.entailment_if,
        examples=params.report.examples,
        versions={"Python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        prepared=root / PREPARED,
    )


def _recipes(searched: Path, trained: Path, evaluated: Path) -> Iterator[Recipe]:
    """The recipes whose grids, final seeds and scores are in these folders."""
    summary, per_seed = read_json(evaluated / "summary.json"), read_json(evaluated / "per_seed.json")
    tables = searched / "trials.csv", trained / "curves.csv", evaluated / "pr_curves.csv"
    trials, curves, points = (_by_recipe(path) for path in tables)
    for entry in read_json(trained / "variants.json"):
        with contents_of(trained / "variants.json"):
            name, objective = entry["name"], entry["objective"]
            choice = Choice.model_validate_json(json.dumps(entry["choice"])) if entry["choice"] else None
            seeds = tuple(Seed(**{key.name: seed[key.name] for key in fields(Seed)}) for seed in entry["seeds"])
            named = {s.seed: trial_name(objective, choice.learning_rate, choice.batch_size, s.seed) for s in seeds if choice}
            about = {key: entry[key] for key in ("overrides", "similarity", "score_name", "failure")}
        with contents_of(evaluated / "per_seed.json"):
            numbers = {s.seed: per_seed[name][f"seed-{s.seed}"] for s in seeds}
        with contents_of(evaluated / "summary.json"):
            means = summary[name] if seeds else {}
        with contents_of(tables[0]):
            grid = tuple(_trial(row) for row in trials[name])
        with contents_of(tables[1]):
            learning = {
                key: {
                    seed: [(int(row["step"]), float(row[key])) for row in curves[name] if row["trial"] == trial and row[key]]
                    for seed, trial in named.items()
                }
                for key in ("dev_score", "loss")
            }
        precision_recall: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        with contents_of(tables[2]):
            for row in points[name]:
                key = row["set"], int(row["seed"].removeprefix("seed-"))
                precision_recall[key].append((float(row["recall"]), float(row["precision"])))
        yield Recipe(
            name=name,
            objective=objective,
            **about,
            choice=choice,
            seeds=seeds,
            trials=grid,
            summary=means,
            per_seed=numbers,
            learning=learning,
            precision_recall=precision_recall,
            scores=evaluated / "scores" / name,
        )


def trial_name(objective: str, learning_rate: float, batch_size: int, seed: int) -> str:
    """A trial's name in curves.csv, the same as `pipeline.trials.trial.Trial.name`."""
    return f"{objective}-lr{learning_rate:g}-b{batch_size}-s{seed}"


def _by_recipe(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of a CSV file with a header, by recipe."""
    by_recipe: dict[str, list[dict[str, str]]] = defaultdict(list)
    try:
        with path.open(encoding="utf-8", newline="") as file, contents_of(path):
            for row in csv.DictReader(file):
                by_recipe[row["variant"]].append(row)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from None
    return by_recipe


def _trial(row: Mapping[str, str]) -> TrialRow:
    return TrialRow(
        learning_rate=float(row["learning_rate"]),
        batch_size=int(row["batch_size"]),
        seed=int(row["seed"]),
        best_dev_score=float(row["best_dev_score"]) if row["best_dev_score"] else None,
        **{key: row[key] for key in ("status", "best_step", "total_steps", "trial", "failure")},
    )


def read_scores(recipe: Recipe, set_name: str, seed: int) -> tuple[Path, Any]:
    """The scores of single rows of a set by one model: the path of the Parquet file, and the table."""
    path = recipe.scores / set_name / f"seed-{seed}.parquet"
    return path, read_table(path)


def read_table(path: Path) -> Any:
    """A Parquet file.

    Raises:
        UserError: the file is missing, or not such a file.
    """
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from None


@contextmanager
def contents_of(path: Path) -> Iterator[None]:
    """Turn a missing key or a wrong value into an error that names the file.

    Raises:
        UserError: the block found something that the file's stage does not write.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: not what its stage writes ({type(error).__name__}: {error}); run `dvc repro` to make it"
        ) from None
