"""Train recipes, the main one or variants: run each one's grid, then its final seeds, and write what came out."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.params import TuneParams
from pipeline.config.types import Section, Seed
from pipeline.trials.trial import EarlyStopping, Outcome, Recipe, Timing, Trial, TrialResult, score_label
from pipeline.utils.atomic_io import to_csv, write_json
from pipeline.utils.errors import UserError, counted

MAIN = "main recipe"
"""Name of the recipe of params.yaml in a list with variants."""

Run = Callable[[list[Trial], EarlyStopping | None], Sequence[TrialResult]]
"""Trains trials, each once, with early stopping by this rule; returns their results in order."""


class Choice(Section):
    """The chosen point of the grid, as stored in best.yaml."""

    learning_rate: float
    batch_size: int
    mean_dev_score: float
    sd_dev_score: float | None
    seeds: tuple[Seed, ...]
    code: str
    """Digest of the code that trained the grid; DVC reruns stage train when it changes."""


@dataclass(slots=True, kw_only=True)
class RecipeRun:
    """The state of a recipe: its grid and the results, the chosen point and the results of the final seeds."""

    name: str
    recipe: Recipe
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted key → value, where the recipe differs from params.yaml."""
    points: list[Trial] = field(default_factory=list[Trial])
    """The trials of the grid; the seeds of a point are consecutive."""
    early_stopping: EarlyStopping | None = None
    grid: list[TrialResult] = field(default_factory=list[TrialResult])
    choice: Choice | None = None
    final: list[TrialResult] = field(default_factory=list[TrialResult])
    failure: str | None = None

    @staticmethod
    def of(name: str, recipe: Recipe, tune: TuneParams, overrides: Mapping[str, Any] | None = None) -> RecipeRun:
        """A recipe with the grid of section `tune`, not trained yet."""
        grid = itertools.product(tune.learning_rates, tune.batch_sizes, tune.seeds)
        points = [recipe.trial(*point) for point in grid]
        return RecipeRun(
            name=name, recipe=recipe, overrides=overrides or {}, points=points, early_stopping=EarlyStopping.of(tune)
        )

    @property
    def finished(self) -> list[tuple[Trial, Outcome]]:
        """The final seeds that finished."""
        return [(result.trial, result.outcome) for result in self.final if result.outcome is not None]

    @property
    def results(self) -> list[TrialResult]:
        """Every trial once, grid first."""
        return list({result.trial.digest: result for result in (*self.grid, *self.final)}.values())


def run_grids(recipe_runs: Sequence[RecipeRun], run: Run) -> None:
    """Run every recipe's grid and choose a point. A recipe that fails is kept with its reason, and the others go on.

    Args:
        run: gets the trials of all recipes at once, so that no core is idle between two recipes. Only those with early stopping
            come one recipe at a time, because only trials of the same recipe may stop each other.
    """
    together = [recipe_run for recipe_run in recipe_runs if recipe_run.early_stopping is None]
    alone = [[recipe_run] for recipe_run in recipe_runs if recipe_run.early_stopping is not None]
    for group in filter(None, (together, *alone)):
        trials = {trial.digest: trial for recipe_run in group for trial in recipe_run.points}
        results = {result.trial.digest: result for result in run(list(trials.values()), group[0].early_stopping)}
        for recipe_run in group:
            recipe_run.grid = made_whole([results[trial.digest] for trial in recipe_run.points], run)
            try:
                recipe_run.choice = choose(recipe_run.grid)
            except UserError as error:
                recipe_run.failure = str(error)


def run_finals(recipe_runs: Sequence[RecipeRun], run: Run) -> None:
    """Run every recipe's chosen point with its final seeds. What the grids have trained is not run again."""
    results = {
        result.trial.digest: result for recipe_run in recipe_runs for result in recipe_run.grid if result.outcome is not None
    }
    final_trials = [
        [recipe_run.recipe.trial(choice.learning_rate, choice.batch_size, seed) for seed in recipe_run.recipe.train.seeds]
        if (choice := recipe_run.choice)
        else []
        for recipe_run in recipe_runs
    ]
    if new := {trial.digest: trial for trials in final_trials for trial in trials if trial.digest not in results}:
        results |= {result.trial.digest: result for result in run(list(new.values()), None)}
    for recipe_run, trials in zip(recipe_runs, final_trials, strict=True):
        recipe_run.final = [results[trial.digest] for trial in trials]
        if recipe_run.final and not recipe_run.finished:
            recipe_run.failure = next(result.failure for result in recipe_run.final if result.failure)


def made_whole(results: Sequence[TrialResult], run: Run) -> list[TrialResult]:
    """The results, completed if necessary so that a point can be chosen.

    Early stopping acts on each seed separately, so perhaps no point has finished all its seeds. If so, `run` trains the missing
    seeds of the most promising point without a failure: the most finished seeds, then the highest mean score of these.
    """
    points = [runs for runs in _by_point(results) if not any(run.failure for run in runs)]
    if any(all(run.outcome for run in runs) for runs in points) or not points:
        return list(results)
    most_promising = max(points, key=lambda runs: (len(scores := _scores(runs)), statistics.fmean(scores or [0.0])))
    missing = [run.trial for run in most_promising if run.outcome is None]
    again = {result.trial.digest: result for result in run(missing, None)}
    return [again.get(result.trial.digest, result) for result in results]


def choose(results: Sequence[TrialResult]) -> Choice:
    """The point with the highest mean best development score over its seeds; on ties, the first in grid order.

    A point with a failed or stopped seed cannot be chosen, because its mean would cover fewer seeds than the others.

    Raises:
        UserError: no point has all its seeds.
    """
    whole = [runs for runs in _by_point(results) if all(run.outcome for run in runs)]
    if not whole:
        reason = next((f"the first failure was: {run.failure}" for run in results if run.failure), "")
        raise UserError(
            "no point of the grid finished on all its seeds; "
            + (reason or "all were stopped early: raise tune.grace_scorings, or set tune.early_stopping: none (params.yaml)")
        )
    best = max(whole, key=lambda runs: statistics.fmean(_scores(runs)))
    scores = _scores(best)
    return Choice(
        learning_rate=best[0].trial.learning_rate,
        batch_size=best[0].trial.batch_size,
        mean_dev_score=statistics.fmean(scores),
        sd_dev_score=statistics.stdev(scores) if len(scores) > 1 else None,
        seeds=tuple(run.trial.seed for run in best),
        code=best[0].trial.code,
    )


def _by_point(results: Sequence[TrialResult]) -> list[list[TrialResult]]:
    """The results of each point's seeds, which are consecutive."""
    grouped = itertools.groupby(results, key=lambda result: (result.trial.learning_rate, result.trial.batch_size))
    return [list(runs) for _, runs in grouped]


def _scores(runs: Iterable[TrialResult]) -> list[float]:
    """The best development scores of those that finished."""
    return [run.outcome.best_score for run in runs if run.outcome is not None]


def choice_yaml(choice: Choice) -> str:
    """The text of best.yaml."""
    return yaml.safe_dump(choice.model_dump(mode="json"), sort_keys=False)


def read_choice(path: Path) -> Choice:
    """Read best.yaml.

    Raises:
        UserError: the file is missing or is not what `choice_yaml` writes.
    """
    try:
        return Choice.model_validate_json(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not the choice of a grid ({type(error).__name__}); run `dvc repro` to make it") from None


def table_rows(results: Iterable[TrialResult]) -> list[dict[str, Any]]:
    """One row per trial; a failed or stopped trial has empty numbers and a reason. Equal runs give equal rows, except under early
    stopping, which depends on the order in which trials report."""
    return [
        {
            "learning_rate": r.trial.learning_rate,
            "batch_size": r.trial.batch_size,
            "seed": r.trial.seed,
            "status": "finished" if r.outcome else "stopped" if r.stopped else "failed",
            "best_dev_score": r.outcome.best_score if r.outcome else "",
            "best_step": r.outcome.best_step if r.outcome else "",
            "total_steps": r.outcome.total_steps if r.outcome else "",
            "trial": r.trial.digest,
            "failure": r.failure or r.stopped or "",
        }
        for r in results
    ]


def write_tables(folder: Path, recipe_runs: Sequence[RecipeRun]) -> None:
    """Write every trial and its learning curve: trials.csv and curves.csv."""
    trials = [{"variant": one.name, **row} for one in recipe_runs for row in table_rows(one.results)]
    keys = {"step": "step", "loss": "loss", "learning_rate": "learning_rate", "dev_score": "score"}
    curves = [
        {"variant": one.name, "trial": result.trial.name, **{name: entry[key] for name, key in keys.items()}}
        for one in recipe_runs
        for result in one.results
        if result.outcome
        for entry in result.outcome.history
    ]
    (folder / "trials.csv").write_text(to_csv(trials, ("variant", "trial")), encoding="utf-8")
    (folder / "curves.csv").write_text(to_csv(curves, ("variant", "trial", *keys)), encoding="utf-8")


def write_variants(folder: Path, recipe_runs: Sequence[RecipeRun], timings: Mapping[str, Timing]) -> None:
    """Write what each recipe is and how it ended: variants.json.

    Args:
        timings: timings of the final trials, by trial digest.
    """
    write_json(folder / "variants.json", [_described(recipe_run, timings) for recipe_run in recipe_runs])


def _described(recipe_run: RecipeRun, timings: Mapping[str, Timing]) -> dict[str, Any]:
    objective = recipe_run.recipe.objective
    return {
        "name": recipe_run.name,
        "overrides": recipe_run.overrides,
        "objective": objective.name,
        "similarity": objective.shown_similarity,
        "uses_variance": objective.gaussian_similarity is not None,
        "score_name": objective.score_name,
        "choice": recipe_run.choice.model_dump(mode="json") if recipe_run.choice else None,
        "failure": recipe_run.failure,
        "seeds": [
            {"seed": trial.seed, "trial": trial.digest, "name": trial.name, "best_dev_score": outcome.best_score}
            | {key: getattr(outcome, key) for key in ("best_step", "total_steps", "rows", "same_source_pairs")}
            | asdict(timings[trial.digest])
            for trial, outcome in recipe_run.finished
        ],
    }


def one_line(recipe_run: RecipeRun) -> str:
    """A one-line result of a recipe for the terminal."""
    if recipe_run.failure:
        return f"{recipe_run.name}: failed: {recipe_run.failure}"
    scores = _scores(recipe_run.final)
    spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    lost = f", {len(recipe_run.final) - len(scores)} failed" if len(scores) < len(recipe_run.final) else ""
    mean = f"{score_label(recipe_run.recipe.objective.score_name)} {statistics.fmean(scores):.2f}"
    return f"{recipe_run.name}: {mean}{spread} over {counted(len(scores), 'seed')}{lost}"
