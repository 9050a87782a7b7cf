"""Reads the result files into one object, which holds everything the report shows."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pipeline.config.job_inputs import git_commit
from pipeline.config.params import Params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, TRAIN, TUNE
from pipeline.config.types import Section
from pipeline.data.decision import EntailmentIf
from pipeline.data.schema import DEV_OPERATIONS, DEV_TEXT
from pipeline.report.files import contents_of, number, read_rows
from pipeline.report.recipe import Recipe, Seed, Step, TrialRow
from pipeline.trials.grid import Choice
from pipeline.utils.atomic_io import read_json

_PACKAGES = ("torch", "transformers", "tokenizers", "ray", "mlflow", "dvc", "pyarrow", "numpy", "scikit-learn", "plotly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
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
    commit: str
    versions: Mapping[str, str]
    prepared: Path

    @property
    def main(self) -> Recipe:
        """The recipe of params.yaml."""
        return self.recipes[0]

    @property
    def nli_sets(self) -> tuple[str, ...]:
        """The sets of labelled pairs, "dev" first."""
        return tuple(sorted((name for name, numbers in self.main.summary.items() if "accuracy" in numbers), key=_dev_first))

    @property
    def sts_sets(self) -> tuple[str, ...]:
        """The sets of pairs with a graded similarity."""
        return tuple(sorted(name for name, numbers in self.main.summary.items() if "spearman_cosine" in numbers))

    @property
    def text_sets(self) -> tuple[str, ...]:
        """The sets of running text, those of development first."""
        names = (name for name, numbers in self.main.summary.items() if "next_sentence" in numbers)
        return tuple(sorted(names, key=lambda name: (name != DEV_TEXT, name)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The transfer tasks."""
        return tuple(sorted(name for name, numbers in self.main.summary.items() if "logistic" in numbers))

    @property
    def operation_sets(self) -> tuple[str, ...]:
        """The sets of operation rows, those of development first."""
        names = (name for name, numbers in self.main.summary.items() if "operator_mrr" in numbers)
        return tuple(sorted(names, key=lambda name: (name != DEV_OPERATIONS, name)))

    @property
    def figure_sets(self) -> tuple[str, ...]:
        """The sets that are shown in detail: the test sets, or the development set if there are none."""
        return tuple(name for name in self.nli_sets if name != "dev") or self.nli_sets


def read_content(params: Params, shown: Mapping[str, Section], root: Path) -> Content:
    """Read the outputs of the earlier stages from a project folder.

    Args:
        shown: the sections of params.yaml that the report lists, by name.

    Raises:
        UserError: a file is missing or damaged.
    """
    profile = read_json(root / PROFILE)
    with contents_of(root / PROFILE):
        hypothesis_only = profile["hypothesis_only"]
    return Content(
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
        commit=git_commit(root),
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
            about = {key: entry[key] for key in ("overrides", "similarity", "uses_variance", "score_name", "failure")}
        with contents_of(evaluated / "per_seed.json"):
            numbers = {s.seed: per_seed[name][f"seed-{s.seed}"] for s in seeds}
        with contents_of(evaluated / "summary.json"):
            means = summary[name] if seeds else {}
        rows = _trials(trials.get(name, []), tables[0])
        yield Recipe(
            name=name,
            objective=objective,
            **about,
            choice=choice,
            seeds=seeds,
            failures=tuple(
                (trial_name(objective, row.learning_rate, row.batch_size, row.seed), row.failure)
                for row in rows
                if row.status == "failed"
            ),
            trials=rows,
            summary=means,
            per_seed=numbers,
            learning=_learning(curves.get(name, []), named, tables[1]),
            precision_recall=_precision_recall(points.get(name, []), tables[2]),
            scores=evaluated / "scores" / name,
        )


def trial_name(objective: str, learning_rate: float, batch_size: int, seed: int) -> str:
    """A trial's name in curves.csv, the same as `pipeline.trials.trial.Trial.name`."""
    return f"{objective}-lr{learning_rate:g}-b{batch_size}-s{seed}"


def _dev_first(name: str) -> tuple[bool, str]:
    return name != "dev", name


def _by_recipe(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of a table, by recipe."""
    by_recipe: dict[str, list[dict[str, str]]] = {}
    with contents_of(path):
        for row in read_rows(path):
            by_recipe.setdefault(row["variant"], []).append(row)
    return by_recipe


def _trials(rows: Iterable[dict[str, str]], path: Path) -> tuple[TrialRow, ...]:
    with contents_of(path):
        return tuple(
            TrialRow(
                learning_rate=float(row["learning_rate"]),
                batch_size=int(row["batch_size"]),
                seed=int(row["seed"]),
                best_dev_score=number(row["best_dev_score"]),
                **{key: row[key] for key in ("status", "best_step", "total_steps", "trial", "failure")},
            )
            for row in rows
        )


def _learning(rows: Sequence[dict[str, str]], names: Mapping[int, str], path: Path) -> dict[int, tuple[Step, ...]]:
    with contents_of(path):
        return {
            seed: tuple(
                Step(step=int(row["step"]), loss=number(row["loss"]), dev_score=number(row["dev_score"]))
                for row in rows
                if row["trial"] == name
            )
            for seed, name in names.items()
        }


def _precision_recall(
    rows: Iterable[dict[str, str]], path: Path
) -> dict[tuple[str, int], tuple[tuple[float, float, float], ...]]:
    curves: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with contents_of(path):
        for row in rows:
            key = row["set"], int(row["seed"].removeprefix("seed-"))
            curves.setdefault(key, []).append((float(row["recall"]), float(row["precision"]), float(row["threshold"])))
    return {key: tuple(points) for key, points in curves.items()}
