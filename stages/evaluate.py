"""Stage evaluate: scores every model on the development set and every test set; writes per-pair scores, numbers and curves."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.config.paths import EVALUATE, MODELS, TRAIN
from pipeline.families.family import all_metrics
from pipeline.trials.recipe_run import MAIN
from pipeline.utils.atomic_io import write_directory
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Read models and token stores, score everything, write results/evaluate."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.cluster.stage_run import Final, stage_run
    from pipeline.evaluation.aggregate import flat_headlines, read_outcomes
    from pipeline.tracking.mlflow_runs import log_metrics

    finals = [
        Final(
            name=f"seed {trial.seed}",
            recipe=MAIN,
            trial=trial,
            outcome=outcome,
            folder=root / MODELS / f"seed-{trial.seed}",
            objective=p.objective,
        )
        for trial, outcome in read_outcomes(TRAIN / "outcomes.json")
    ]
    with stage_run(p, execution.tracking, execution.cluster, root) as run, write_directory(EVALUATE) as out:
        summary = run.score(finals, p.evaluate, out)[MAIN]
        log_metrics(run.tracker, run.parent, flat_headlines(summary))
    printed = [name for name, metric in all_metrics().items() if metric.printed]
    for set_name, numbers in summary.items():
        shown = {key: of for key, of in numbers.items() if key in printed}
        log.info(f"evaluate: {set_name}: " + ", ".join(f"{k} {v['mean']:.2f}" for k, v in shown.items()))


if __name__ == "__main__":
    run_stage(placed("evaluate", main))
