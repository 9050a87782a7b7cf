"""Stage train: trains the chosen configuration with each seed of `train.seeds`; trials already trained in the grid are reused."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.config.paths import MODELS, TRAIN, TUNE
from pipeline.models.model_dir import add_relation
from pipeline.trials.recipe_run import MAIN, RecipeRun, read_choice, run_finals, write_tables, write_variants
from pipeline.trials.trial import Recipe, score_label
from pipeline.utils.atomic_io import write_directory, write_json
from pipeline.utils.errors import UserError, run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Read params, token stores and best.yaml; train; write models/seed-N and results/train."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.cluster.grid_search import warn_failures
    from pipeline.cluster.stage_run import stage_run

    choice = read_choice(TUNE / "best.yaml")
    recipe_run = RecipeRun(name=MAIN, recipe=Recipe.of(p.model, p.objective, p.train, root), choice=choice)
    with stage_run(p, execution.tracking, execution.cluster, root) as run:
        run_finals([recipe_run], run.train)
        warn_failures(recipe_run.final)
        if failed := next((result for result in recipe_run.final if result.outcome is None), None):
            raise UserError(f"train: seed {failed.trial.seed} failed: {failed.failure}")
        with write_directory(MODELS) as out:
            for trial, _ in recipe_run.finished:
                folder = Path(shutil.copytree(run.store.folder(trial).model, out / f"seed-{trial.seed}"))
                if (relation := run.relation(trial.name, trial, p.model.relation_head, p.relation)) is not None:
                    add_relation(relation, folder)
        timings = run.timings([recipe_run])
    with write_directory(TRAIN) as out:
        write_tables(out, [recipe_run])
        write_variants(out, [recipe_run], timings)
        # Without times, so that equal models are not scored again.
        outcomes = [
            {"trial": trial.model_dump(mode="json"), "outcome": asdict(outcome)} for trial, outcome in recipe_run.finished
        ]
        write_json(out / "outcomes.json", outcomes)
    for trial, outcome in recipe_run.finished:
        log.info(
            f"train: seed {trial.seed}: best {score_label(outcome.score_name)} {outcome.best_score:.2f} at step "
            f"{outcome.best_step} of {outcome.total_steps}"
        )


if __name__ == "__main__":
    run_stage(placed("train", main))
