"""Variants through grid and final seeds: which trials they want, and what became of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import UserError
from pipeline.grid import Choice, Recipe, Result, choose, grid_trials, made_whole
from pipeline.params import TuneParams
from pipeline.trial import Trial
from pipeline.variants import Variant

Run = Callable[[list[Trial], TuneParams], Sequence[Result]]
"""Trains trials under the early stopping that the section `tune` asks for; their results in order."""


@dataclass(slots=True, kw_only=True)
class Course:
    """A variant on its way: its recipe, the results of its grid, the chosen point, the results of its final seeds."""

    variant: Variant
    recipe: Recipe
    grid: list[Result] = field(default_factory=list[Result])
    choice: Choice | None = None
    final: list[Result] = field(default_factory=list[Result])
    failure: str | None = None

    @property
    def finished(self) -> list[Result]:
        """Final seeds that have a model."""
        return [result for result in self.final if result.outcome is not None]

    @property
    def results(self) -> list[Result]:
        """Every trial once, grid first."""
        return list({result.trial.digest: result for result in (*self.grid, *self.final)}.values())


def run_courses(
    variants: Sequence[Variant],
    root: Path,
    run: Run,
) -> list[Course]:
    """Take every variant through its grid, then its final seeds; one that fails is kept with its reason, the others go on.

    Args:
        root: the project's folder, with the output of the data stages.
        run: trains trials, none twice, under the early stopping that the section `tune` asks for; returns their results in order.
            It gets the trials of all variants at once, so that no core waits between two of them.
    """
    courses = [
        Course(
            variant=variant,
            recipe=Recipe.of(variant.params.model, variant.params.objective, variant.params.train, root),
        )
        for variant in variants
    ]
    wanted = [grid_trials(course.recipe, course.variant.params.tune) for course in courses]
    for course, results in zip(courses, _together(courses, wanted, run, stopping=True), strict=True):
        course.grid = made_whole(results, _without_stopping(course, run))
        try:
            course.choice = choose(results)
        except UserError as error:
            course.failure = str(error)
    wanted = [_final_trials(course) for course in courses]
    done = {result.trial.digest: result for course in courses for result in course.grid if result.outcome is not None}
    new = [[trial for trial in trials if trial.digest not in done] for trials in wanted]
    for results in _together(courses, new, run, stopping=False):
        done |= {result.trial.digest: result for result in results}
    for course, trials in zip(courses, wanted, strict=True):
        course.final = [done[trial.digest] for trial in trials]
        if course.choice is not None and not course.finished:
            course.failure = next(result.failure for result in course.final if result.failure)
    return courses


def _final_trials(course: Course) -> list[Trial]:
    if course.choice is None:
        return []
    choice, recipe = course.choice, course.recipe
    return [recipe.trial(choice.learning_rate, choice.batch_size, seed) for seed in course.variant.params.train.seeds]


def _without_stopping(course: Course, run: Run) -> Callable[[list[Trial]], Sequence[Result]]:
    tune = course.variant.params.tune.model_copy(update={"early_stopping": "none"})
    return lambda trials: run(trials, tune)


def _together(
    courses: Sequence[Course],
    wanted: Sequence[list[Trial]],
    run: Run,
    *,
    stopping: bool,
) -> list[list[Result]]:
    """Run the trials of all courses, those without early stopping in one go; their results course by course."""
    groups: dict[str, tuple[TuneParams, dict[str, Trial]]] = {}
    names: list[str] = []
    for course, trials in zip(courses, wanted, strict=True):
        tune = course.variant.params.tune
        if not stopping:
            tune = tune.model_copy(update={"early_stopping": "none"})
        # Trials that may stop each other are those of one variant only.
        names.append("" if tune.early_stopping == "none" else course.variant.name)
        groups.setdefault(names[-1], (tune, {}))[1].update({trial.digest: trial for trial in trials})
    done = {
        name: {result.trial.digest: result for result in (run(list(trials.values()), tune) if trials else ())}
        for name, (tune, trials) in groups.items()
    }
    return [[done[name][trial.digest] for trial in trials] for name, trials in zip(names, wanted, strict=True)]


def one_line(course: Course) -> str:
    """What became of a variant, for the terminal."""
    if course.failure:
        return f"{course.variant.name}: failed: {course.failure}"
    scores = [result.outcome.best_dev_pr_auc for result in course.finished if result.outcome is not None]
    spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    lost = f", {len(course.final) - len(scores)} failed" if len(scores) < len(course.final) else ""
    return (
        f"{course.variant.name}: development PR-AUC {statistics.fmean(scores):.2f}{spread} "
        f"over {len(scores)} seed{'s' if len(scores) > 1 else ''}{lost}"
    )
