"""Train recipes, the main one or variants: run each one's grid, then its final seeds, and write what came out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.params import TuneParams
from pipeline.trials.grid import Choice, Recipe, choose, curves_rows, grid_trials, made_whole, table_rows, to_csv
from pipeline.trials.trial import EarlyStopping, Outcome, Timing, Trial, TrialResult, long_score_label
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError

MAIN = "main recipe"
"""Name of the recipe of params.yaml in a list with variants."""

Run = Callable[[list[Trial], EarlyStopping | None], Sequence[TrialResult]]
"""Trains trials, each once, with early stopping by this rule; returns their results in order."""


@dataclass(slots=True, kw_only=True)
class Course:
    """The state of a recipe: its grid and the results, the chosen point and the results of the final seeds."""

    name: str
    recipe: Recipe
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted key → value, where the recipe differs from params.yaml."""
    points: list[Trial] = field(default_factory=list[Trial])
    """The trials of the grid."""
    early_stopping: EarlyStopping | None = None
    grid: list[TrialResult] = field(default_factory=list[TrialResult])
    choice: Choice | None = None
    final: list[TrialResult] = field(default_factory=list[TrialResult])
    failure: str | None = None

    @staticmethod
    def of(name: str, recipe: Recipe, tune: TuneParams, overrides: Mapping[str, Any] | None = None) -> Course:
        """A recipe with the grid of section `tune`, not trained yet."""
        points, rule = grid_trials(recipe, tune), EarlyStopping.of(tune)
        return Course(name=name, recipe=recipe, overrides=overrides or {}, points=points, early_stopping=rule)

    @property
    def finished(self) -> list[tuple[Trial, Outcome]]:
        """The final seeds that finished."""
        return [(result.trial, result.outcome) for result in self.final if result.outcome is not None]

    @property
    def results(self) -> list[TrialResult]:
        """Every trial once, grid first."""
        return list({result.trial.digest: result for result in (*self.grid, *self.final)}.values())


def run_grids(courses: Sequence[Course], run: Run) -> None:
    """Run every recipe's grid and choose a point. A recipe that fails is kept with its reason, and the others go on.

    Args:
        run: gets the trials of all recipes at once, so that no core is idle between two recipes. Only those with early stopping
            come one recipe at a time, because only trials of the same recipe may stop each other.
    """
    groups: dict[str, tuple[EarlyStopping | None, dict[str, Trial]]] = {}
    names = [course.name if course.early_stopping else "" for course in courses]
    for name, course in zip(names, courses, strict=True):
        trials = {trial.digest: trial for trial in course.points}
        groups.setdefault(name, (course.early_stopping, {}))[1].update(trials)
    results = {
        name: {result.trial.digest: result for result in run(list(trials.values()), rule)}
        for name, (rule, trials) in groups.items()
    }
    for name, course in zip(names, courses, strict=True):
        course.grid = made_whole([results[name][trial.digest] for trial in course.points], lambda trials: run(trials, None))
        try:
            course.choice = choose(course.grid)
        except UserError as error:
            course.failure = str(error)


def run_finals(courses: Sequence[Course], run: Run) -> None:
    """Run every recipe's chosen point with its final seeds. What the grids have trained is not run again."""
    results = {result.trial.digest: result for course in courses for result in course.grid if result.outcome is not None}
    final_trials = [
        [course.recipe.trial(choice.learning_rate, choice.batch_size, seed) for seed in course.recipe.train.seeds]
        if (choice := course.choice)
        else []
        for course in courses
    ]
    if new := {trial.digest: trial for trials in final_trials for trial in trials if trial.digest not in results}:
        results |= {result.trial.digest: result for result in run(list(new.values()), None)}
    for course, trials in zip(courses, final_trials, strict=True):
        course.final = [results[trial.digest] for trial in trials]
        if course.final and not course.finished:
            course.failure = next(result.failure for result in course.final if result.failure)


def write_tables(folder: Path, courses: Sequence[Course]) -> None:
    """Write every trial and its learning curve: trials.csv and curves.csv."""
    tables = {
        "trials.csv": (table_rows, ("variant", "trial")),
        "curves.csv": (curves_rows, ("variant", "trial", "step", "loss", "learning_rate", "dev_score")),
    }
    for name, (rows_of, header) in tables.items():
        rows = [{"variant": course.name, **row} for course in courses for row in rows_of(course.results)]
        (folder / name).write_text(to_csv(rows, header), encoding="utf-8")


def write_variants(folder: Path, courses: Sequence[Course], timings: Mapping[str, Timing]) -> None:
    """Write what each recipe is and how it ended: variants.json.

    Args:
        timings: timings of the final trials, by trial digest.
    """
    write_json(folder / "variants.json", [_described(course, timings) for course in courses])


def _described(course: Course, timings: Mapping[str, Timing]) -> dict[str, Any]:
    objective = course.recipe.objective
    return {
        "name": course.name,
        "overrides": course.overrides,
        "objective": objective.name,
        "similarity": objective.shown_similarity,
        "uses_variance": objective.gaussian_similarity is not None,
        "score_name": objective.score_name,
        "choice": course.choice.model_dump(mode="json") if course.choice else None,
        "failure": course.failure,
        "seeds": [
            {
                "seed": trial.seed,
                "trial": trial.digest,
                "best_dev_score": outcome.best_score,
                "best_step": outcome.best_step,
                "total_steps": outcome.total_steps,
                "rows": outcome.rows,
                "same_source_pairs": outcome.same_source_pairs,
                **asdict(timings[trial.digest]),
            }
            for trial, outcome in course.finished
        ],
    }


def one_line(course: Course) -> str:
    """A one-line result of a recipe for the terminal."""
    if course.failure:
        return f"{course.name}: failed: {course.failure}"
    scores = [outcome.best_score for _, outcome in course.finished]
    spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    lost = f", {len(course.final) - len(scores)} failed" if len(scores) < len(course.final) else ""
    return (
        f"{course.name}: {long_score_label(course.recipe.objective.score_name)} {statistics.fmean(scores):.2f}{spread} "
        f"over {len(scores)} seed{'s' if len(scores) > 1 else ''}{lost}"
    )
