"""Stage tune: runs the grid with Ray Tune, each trial a training run; writes its table and the chosen point."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.config.paths import TUNE
from pipeline.trials.recipe_run import MAIN, RecipeRun, choice_yaml, run_grids, write_tables
from pipeline.trials.trial import Recipe, score_label
from pipeline.utils.atomic_io import write_directory
from pipeline.utils.errors import UserError, run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Read params and token stores, run the grid, write results/tune."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.cluster.grid_search import warn_failures
    from pipeline.cluster.stage_run import stage_run

    recipe_run = RecipeRun.of(MAIN, Recipe.of(p.model, p.objective, p.train, root), p.tune)
    with stage_run(p, execution.tracking, execution.cluster, root) as run:
        run_grids([recipe_run], run.train)
        warn_failures(recipe_run.grid)
        if (choice := recipe_run.choice) is None:
            raise UserError(recipe_run.failure or "no point of the grid was chosen")
    with write_directory(TUNE) as out:
        write_tables(out, [recipe_run])
        (out / "best.yaml").write_text(choice_yaml(choice), encoding="utf-8")
    log.info(
        f"tune: learning rate {choice.learning_rate:g}, batch size {choice.batch_size}: "
        f"{score_label(p.objective.score_name)} {choice.mean_dev_score:.2f} (mean over seeds {list(choice.seeds)})"
    )


if __name__ == "__main__":
    run_stage(placed("tune", main))
