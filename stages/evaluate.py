"""Stage evaluate: every model on the development set and every test set; per-pair scores, numbers, curves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import read_json, write_directory, write_json
from pipeline.placing import placed
from pipeline.project import EVALUATE, MODELS, PROFILE, TRAIN


def main() -> None:
    """Read models and token stores, score everything, write results/evaluate."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking
    from pipeline.grid import to_csv
    from pipeline.scoring import Model, numbers_of, score_models, write_scores
    from pipeline.summary import flatten, headline, mean_and_sd, pr_curve_rows, read_outcomes

    outcomes = read_outcomes(TRAIN / "outcomes.json")
    models = [
        Model(name=f"seed {trial.seed}", folder=root / MODELS / f"seed-{trial.seed}", objective=p.objective)
        for trial, _ in outcomes
    ]
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with (
        tracking.stage_of(tracker, parent),
        cluster.Places.of_project(root, execution.cluster.storage) as places,
        cluster.session_on_demand(execution.cluster) as session,
        write_directory(EVALUATE) as out,
    ):
        encode = partial(cluster.encode_stores, session=session)
        seeds: dict[str, dict[str, dict[str, float]]] = {}
        curves: list[dict[str, Any]] = []
        for (trial, outcome), scores in zip(outcomes, score_models(models, root, places, encode), strict=True):
            name = f"seed-{trial.seed}"
            write_scores(scores.folder, out / "scores", name)
            seeds[name] = numbers_of(scores.tables, p.evaluate)
            curves += [row for set_name, table in scores.tables.items() for row in pr_curve_rows(set_name, name, table)]
            run_id = tracking.ensure_trial(tracker, parent, trial, outcome)
            tracking.log_metrics(tracker, run_id, flatten(seeds[name]))
        baseline = read_json(PROFILE)["hypothesis_only"]
        summary = mean_and_sd(seeds)
        write_json(out / "summary.json", {"sets": summary, "hypothesis_only": baseline})
        write_json(out / "metrics.json", headline(summary))
        write_json(out / "per_seed.json", seeds)
        (out / "pr_curves.csv").write_text(to_csv(curves), encoding="utf-8")
        tracking.log_metrics(tracker, parent, flatten({f"{k}.hypothesis_only": v for k, v in baseline.items()}))
        tracking.log_metrics(tracker, parent, flatten(summary))
    for set_name, numbers in summary.items():
        told = ("pr_auc", "accuracy", "direction.sim", "direction.length_only", "spearman_cosine")
        shown = {k: v for k, v in numbers.items() if k in told}
        print(f"evaluate: {set_name}: " + ", ".join(f"{k} {v['mean']:.2f}" for k, v in shown.items()))


if __name__ == "__main__":
    run_stage(placed("evaluate", main))
