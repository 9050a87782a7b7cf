"""Stage tune: the grid through Ray Tune, each trial a Ray Train run; its table and the chosen point."""

from __future__ import annotations

from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import write_directory
from pipeline.grid import Recipe, choice_yaml, choose, curves_csv, grid_trials, made_whole, table_csv
from pipeline.placing import placed
from pipeline.project import TUNE
from pipeline.trial import EarlyStopping


def main() -> None:
    """Read params and token stores, run the grid, write results/tune."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking

    recipe = Recipe.of(p.model, p.objective, p.train, root)
    trials = grid_trials(recipe, p.tune)
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with (
        tracking.stage_of(tracker, parent),
        cluster.Places.of_project(root, execution.cluster.storage) as places,
        cluster.session_on_demand(execution.cluster) as session,
    ):
        results = made_whole(
            cluster.run_trials(trials, places, session, tracker, parent, EarlyStopping.of(p.tune)),
            lambda stopped: cluster.run_trials(stopped, places, session, tracker, parent),
        )
        cluster.warn_failures(results)
        choice = choose(results)
    with write_directory(TUNE) as out:
        (out / "trials.csv").write_text(table_csv(results), encoding="utf-8")
        (out / "curves.csv").write_text(curves_csv(results), encoding="utf-8")
        (out / "best.yaml").write_text(choice_yaml(choice), encoding="utf-8")
    print(
        f"tune: learning rate {choice.learning_rate:g}, batch size {choice.batch_size}: "
        f"development PR-AUC {choice.mean_dev_pr_auc:.2f} (mean over seeds {list(choice.seeds)})"
    )


if __name__ == "__main__":
    run_stage(placed("tune", main))
