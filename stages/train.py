"""Stage train: the chosen configuration for each seed of `train.seeds`; trials that the grid has trained are reused."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import UserError, run_stage
from pipeline.files import write_directory, write_json
from pipeline.grid import Recipe, curves_csv, read_choice
from pipeline.placing import placed
from pipeline.project import MODELS, TRAIN, TUNE
from pipeline.trial import BEST, timing


def main() -> None:
    """Read params, token stores and best.yaml; train; write models/seed-N and results/train."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking

    choice = read_choice(TUNE / "best.yaml")
    recipe = Recipe.of(p.model, p.objective, p.train, root)
    trials = [recipe.trial(choice.learning_rate, choice.batch_size, seed) for seed in p.train.seeds]
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with cluster.Places.of_project(root, execution.cluster.storage) as places:
        with tracking.stage_of(tracker, parent), cluster.session_on_demand(execution.cluster) as session:
            results = cluster.run_trials(trials, places, session, tracker, parent)
            cluster.warn_failures(results)
            done = [(r.trial, r.outcome) for r in results if r.outcome is not None]
            if len(done) < len(results):
                failed = next(r for r in results if r.outcome is None)
                raise UserError(f"train: seed {failed.trial.seed} failed: {failed.failure}")
        with write_directory(MODELS) as out:
            for trial, _ in done:
                shutil.copytree(places.folder(trial) / BEST, out / f"seed-{trial.seed}")
        timings = {f"seed-{trial.seed}": asdict(timing(places.folder(trial))) for trial, _ in done}
    with write_directory(TRAIN) as out:
        (out / "curves.csv").write_text(curves_csv(results), encoding="utf-8")
        write_json(
            out / "outcomes.json",
            [{"trial": trial.model_dump(mode="json"), "outcome": asdict(outcome)} for trial, outcome in done],
        )
        write_json(out / "timing.json", timings)
    for trial, outcome in done:
        print(
            f"train: seed {trial.seed}: best development PR-AUC {outcome.best_dev_pr_auc:.2f} at step "
            f"{outcome.best_step} of {outcome.total_steps}"
        )


if __name__ == "__main__":
    run_stage(placed("train", main))
