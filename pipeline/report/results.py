"""Reads the result files into one object, which holds everything the report shows.

A file that is missing, or not as its stage writes it, gives an error of one line.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, TypeAdapter

from pipeline.config.params import Params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, TOKENS, TRAIN, TUNE
from pipeline.data.decision import EntailmentIf
from pipeline.data.token_store import MANIFEST
from pipeline.families.family import dev_sets
from pipeline.trials.recipe_run import Choice
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError

R = TypeVar("R", bound=BaseModel)


class Seed(BaseModel):
    """A final model, as in variants.json; precision, device and threads are None if they were not recorded."""

    seed: int
    trial: str
    """The trial's digest."""
    name: str
    """The trial's name in curves.csv."""
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


class TrialRow(BaseModel):
    """A row of trials.csv."""

    learning_rate: float
    batch_size: int
    seed: int
    status: str
    best_dev_score: float | None
    failure: str | None


class CurveRow(BaseModel):
    """A row of curves.csv: a step of a trial."""

    trial: str
    step: int
    loss: float | None
    dev_score: float | None


class PrecisionRow(BaseModel):
    """A row of pr_curves.csv."""

    set: str
    seed: str
    recall: float
    precision: float


class _Described(BaseModel):
    """A recipe, as in variants.json."""

    name: str
    overrides: dict[str, Any]
    """The keys in which the recipe differs from params.yaml."""
    objective: str
    similarity: str
    score_name: str
    """The development score that chose its models."""
    failure: str | None
    """Why the recipe has no result; None if it has one."""
    choice: Choice | None
    seeds: tuple[Seed, ...]


class Recipe(_Described):
    """The main recipe of params.yaml or a variant from its section experiments, with its results."""

    trials: Sequence[TrialRow]
    summary: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Set → metric → mean, min, max and, for more than one seed, sd; empty without a result."""
    per_seed: Mapping[int, Mapping[str, Mapping[str, float]]]
    """Seed → set → metric → value."""
    learning: Mapping[int, Sequence[CurveRow]]
    """Seed → the steps of the final model."""
    precision_recall: Sequence[PrecisionRow]
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
    cut: tuple[int, int]
    """Sentences of training, development and test sets: those cut at model.max_length, and all."""
    params: Mapping[str, Any]
    """The sections of params.yaml to show, by name."""
    entailment_if: EntailmentIf
    examples: Literal["full", "ids", "none"]
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


def read_results(params: Params, shown: Mapping[str, Any], root: Path) -> Results:
    """Read the outputs of the earlier stages from a project folder.

    Args:
        shown: the sections of params.yaml that the report lists, by name, as JSON has them.

    Raises:
        UserError: a file is missing or damaged.
    """
    profile = read_json(root / PROFILE)
    stores = [read_json(root / TOKENS / store / MANIFEST) for store in ("train", "dev", "tests")]
    return Results(
        recipes=(
            *_recipes(root / TUNE, root / TRAIN, root / EVALUATE),
            *_recipes(root / EXPERIMENTS, root / EXPERIMENTS, root / EXPERIMENTS),
        ),
        hypothesis_only=profile.get("hypothesis_only", {}),
        registered=read_json(root / REGISTER),
        profile=profile,
        cut=(sum(store["truncated"] for store in stores), sum(store["sentences"] for store in stores)),
        params=shown,
        entailment_if=params.evaluate.entailment_if,
        examples=params.report.examples,
        prepared=root / PREPARED,
    )


def _recipes(searched: Path, trained: Path, evaluated: Path) -> Iterator[Recipe]:
    """The recipes whose grids, final seeds and scores are in these folders."""
    summary, per_seed = (read_json(evaluated / name) for name in ("summary.json", "per_seed.json"))
    trials = _by_recipe(searched / "trials.csv", TrialRow)
    curves = _by_recipe(evaluated / "pr_curves.csv", PrecisionRow)
    with contents_of(trained / "variants.json"):
        described = TypeAdapter(list[_Described]).validate_json((trained / "variants.json").read_bytes())
    # A grid may have a thousand times as many steps as the final models.
    final = {seed.name for recipe in described for seed in recipe.seeds}
    steps = _by_recipe(trained / "curves.csv", CurveRow, lambda row: row["trial"] in final)
    for recipe in described:
        name, seeds = recipe.name, recipe.seeds
        with contents_of(evaluated):
            means = summary[name] if seeds else {}
            numbers = {s.seed: per_seed[name][f"seed-{s.seed}"] for s in seeds}
        yield Recipe.model_construct(
            **dict(recipe),
            trials=trials[name],
            summary=means,
            per_seed=numbers,
            learning={s.seed: [row for row in steps[name] if row.trial == s.name] for s in seeds},
            precision_recall=curves[name],
            scores=evaluated / "scores" / name,
        )


def _by_recipe(path: Path, kind: type[R], shown: Callable[[dict[str, str]], bool] = lambda _: True) -> dict[str, list[R]]:
    """The rows of a CSV file with a header that are shown, by recipe. An empty cell is None."""
    by_recipe: dict[str, list[R]] = defaultdict(list)
    with contents_of(path), path.open(encoding="utf-8", newline="") as file:
        for row in filter(shown, csv.DictReader(file)):
            by_recipe[row["variant"]].append(kind.model_validate({key: cell or None for key, cell in row.items()}))
    return by_recipe


def read_scores(recipe: Recipe, set_name: str, seed: int) -> tuple[Path, Any]:
    """The scores of single rows of a set by one model: the path of the Parquet file, and the table."""
    path = recipe.scores / set_name / f"seed-{seed}.parquet"
    return path, read_table(path)


def read_table(path: Path) -> Any:
    """A Parquet file."""
    with contents_of(path):
        return pq.read_table(path)


@contextmanager
def contents_of(path: Path) -> Iterator[None]:
    """Turn a file that is missing or not as its stage writes it into an error of one line.

    Raises:
        UserError: the block failed to read the file, or found something in it that the file's stage does not write.
    """
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, csv.Error, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: not what its stage writes ({said}); run `dvc repro` to make it") from None
