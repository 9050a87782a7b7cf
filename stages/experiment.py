"""Stage experiment: trains every variant (its grid and final seeds), scores it on every set and writes the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.config.execution import Execution
from pipeline.config.params import Params
from pipeline.config.paths import EXPERIMENTS
from pipeline.trials.recipe_run import RecipeRun, one_line, run_finals, run_grids, write_tables, write_variants
from pipeline.trials.trial import Recipe, Trial
from pipeline.trials.variants import Variant, variant_of, variants_of
from pipeline.utils.atomic_io import write_directory
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Read params and token stores, train and score the variants, write results/experiments."""
    p, execution = load_project()
    variants = variants_of(p)
    if variants:
        _run(p, execution, variants)
        return
    from pipeline.evaluation.aggregate import write_evaluated

    with write_directory(EXPERIMENTS) as out:
        write_tables(out, [])
        write_variants(out, [], {})
        write_evaluated(out, {}, [])
    log.info("experiment: nothing to compare; experiments.variants (params.yaml) names no variant")


def _run(p: Params, execution: Execution, variants: Sequence[Variant]) -> None:
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.cluster.grid_search import warn_failures
    from pipeline.cluster.stage_run import Final, stage_run

    root = Path.cwd()

    def named(trial: Trial) -> str:
        # Variants with the same objective have trials with the same names.
        return f"{variant_of(trial, variants)}: {trial.name}"

    with stage_run(p, execution.tracking, execution.cluster, root, named) as run:
        recipe_runs = [
            RecipeRun.of(v.name, Recipe.of(v.params.model, v.params.objective, v.params.train, root), v.params.tune, v.overrides)
            for v in variants
        ]
        run_grids(recipe_runs, run.train)
        run_finals(recipe_runs, run.train)
        warn_failures([result for recipe_run in recipe_runs for result in recipe_run.results], named)
        finals = [
            Final(
                name=f"{recipe_run.name}, seed {trial.seed}",
                recipe=recipe_run.name,
                trial=trial,
                outcome=outcome,
                folder=run.store.folder(trial).model,
                objective=trial.objective,
                relation=run.relation(
                    f"{recipe_run.name}: {trial.name}", trial, variant.params.model.relation_head, variant.params.relation
                ),
            )
            for recipe_run, variant in zip(recipe_runs, variants, strict=True)
            for trial, outcome in recipe_run.finished
        ]
        with write_directory(EXPERIMENTS) as out:
            run.score(finals, p.evaluate, out)
            write_tables(out, recipe_runs)
            write_variants(out, recipe_runs, run.timings(recipe_runs))
    for recipe_run in recipe_runs:
        log.info(f"experiment: {one_line(recipe_run)}")


if __name__ == "__main__":
    run_stage(placed("experiment", main, lambda p: bool(variants_of(p))))
