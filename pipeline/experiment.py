"""Variants through grid and final seeds: which trials they want, and what the results say of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.grid import Choice, Recipe, Result, choose, grid_trials
from pipeline.params import TuneParams
from pipeline.trial import Timing, Trial
from pipeline.variants import Variant


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
    train_tokens: str,
    dev_tokens: str,
    run: Callable[[list[Trial], TuneParams], Sequence[Result]],
) -> list[Course]:
    """Take every variant through its grid, then its final seeds; one that fails is kept with its reason, the others go on.

    Args:
        train_tokens: content digest of the training store.
        dev_tokens: of the development store.
        run: trains trials, none twice, under the early stopping that the section `tune` asks for; returns their results in order.
            It gets the trials of all variants at once, so that no core waits between two of them.
    """
    courses = [
        Course(
            variant=variant,
            recipe=Recipe(
                model=variant.params.model,
                objective=variant.params.objective,
                train=variant.params.train,
                train_tokens=train_tokens,
                dev_tokens=dev_tokens,
            ),
        )
        for variant in variants
    ]
    wanted = [grid_trials(course.recipe, course.variant.params.tune) for course in courses]
    for course, results in zip(courses, _together(courses, wanted, run, stopping=True), strict=True):
        course.grid = results
        try:
            course.choice = choose(results)
        except UserError as error:
            course.failure = str(error)
    wanted = [_final_trials(course) for course in courses]
    for course, results in zip(courses, _together(courses, wanted, run, stopping=False), strict=True):
        course.final = results
        if course.choice is not None and not course.finished:
            course.failure = next(result.failure for result in results if result.failure)
    return courses


def _final_trials(course: Course) -> list[Trial]:
    if course.choice is None:
        return []
    choice, recipe = course.choice, course.recipe
    return [recipe.trial(choice.learning_rate, choice.batch_size, seed) for seed in course.variant.params.train.seeds]


def _together(
    courses: Sequence[Course],
    wanted: Sequence[list[Trial]],
    run: Callable[[list[Trial], TuneParams], Sequence[Result]],
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


def describe_course(course: Course, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """The variant's entry of variants.json; `timings` by trial digest."""
    objective = course.variant.params.objective
    return {
        "name": course.variant.name,
        "overrides": course.variant.overrides,
        "objective": objective.name,
        "similarity": objective.similarity,
        "uses_variance": objective.name != "simcse",
        "choice": course.choice.model_dump(mode="json") if course.choice else None,
        "failure": course.failure,
        "seeds": [
            {
                "seed": result.trial.seed,
                "trial": result.trial.digest,
                "best_dev_pr_auc": result.outcome.best_dev_pr_auc,
                "best_step": result.outcome.best_step,
                "total_steps": result.outcome.total_steps,
                "triplets": result.outcome.triplets,
                "same_premise_pairs": result.outcome.same_premise_pairs,
                "seconds": timings[result.trial.digest].seconds,
                "workers": timings[result.trial.digest].workers,
            }
            for result in course.final
            if result.outcome is not None
        ],
        "failures": [
            {"trial": result.trial.name, "seed": result.trial.seed, "reason": result.failure}
            for result in course.results
            if result.failure
        ],
    }


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
