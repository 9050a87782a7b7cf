"""Stage experiment: every variant through its grid and final seeds, scored on every set; the numbers of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.check import load_project
from pipeline.data.tokens import digest
from pipeline.errors import run_stage
from pipeline.files import write_directory, write_json
from pipeline.params import Execution, Params, TuneParams
from pipeline.project import DEV_TOKENS, EXPERIMENTS, TRAIN_TOKENS
from pipeline.trial import BEST, EarlyStopping, Trial, timing
from pipeline.variants import Variant, variants_of

if TYPE_CHECKING:
    from pipeline.cluster import TrialResult

# Columns of tables without rows, for the plots.
_EMPTY = {
    "trials.csv": "variant,trial",
    "curves.csv": "variant,trial,step,loss,learning_rate,dev_pr_auc",
    "pr_curves.csv": "variant,set,seed,recall,precision,threshold",
}


def main() -> None:
    """Read params and token stores, train and score the variants, write results/experiments."""
    p, execution = load_project()
    variants = variants_of(p)
    if variants:
        _run(p, execution, variants)
    else:
        with write_directory(EXPERIMENTS) as out:
            write_json(out / "variants.json", [])
            for name in ("summary", "per_seed", "metrics"):
                write_json(out / f"{name}.json", {})
            for name in _EMPTY:
                _write_csv(out / name, [])
            (out / "scores").mkdir()
        print("experiment: nothing to compare; experiments.variants and experiments.sweep (params.yaml) name no variant")


def _run(p: Params, execution: Execution, variants: Sequence[Variant]) -> None:
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking
    from pipeline.experiment import describe_course, one_line, run_courses
    from pipeline.grid import curves_rows, table_rows
    from pipeline.scoring import Model, numbers_of, score_models, write_scores
    from pipeline.summary import flatten, headline, mean_and_sd, pr_curve_rows

    root = Path.cwd()
    places = cluster.Places.of_project(root, execution.cluster)
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)

    with tracking.stage_of(tracker, parent), cluster.session_on_demand(execution.cluster) as session:

        def run(trials: list[Trial], tune: TuneParams) -> Sequence[TrialResult]:
            return cluster.run_trials(trials, places, session, tracker, parent, EarlyStopping.of(tune))

        courses = run_courses(variants, digest(TRAIN_TOKENS), digest(DEV_TOKENS), run)
        cluster.warn_failures([result for course in courses for result in course.results])
        final = [(course, result) for course in courses for result in course.finished]
        models = [
            Model(
                name=f"{course.variant.name}, seed {result.trial.seed}",
                folder=places.folder(result.trial) / BEST,
                objective=result.trial.objective,
            )
            for course, result in final
        ]
        per_seed: dict[str, dict[str, Any]] = {}
        curves: list[dict[str, Any]] = []
        scored: list[tuple[str, str, Path]] = []
        for (course, result), scores in zip(final, score_models(models, root, places.storage, session), strict=True):
            variant, seed = course.variant.name, f"seed-{result.trial.seed}"
            scored.append((variant, seed, scores.folder))
            per_seed.setdefault(variant, {})[seed] = numbers_of(scores.tables, p.evaluate)
            curves += [{"variant": variant, **row} for name, t in scores.tables.items() for row in pr_curve_rows(name, seed, t)]
            if result.outcome is not None:
                run_id = tracking.ensure_trial(tracker, parent, result.trial, result.outcome)
                tracking.log_metrics(tracker, run_id, flatten(per_seed[variant][seed]))
        summary = {variant: mean_and_sd(seeds) for variant, seeds in per_seed.items()}
        tracking.log_metrics(tracker, parent, flatten({"experiments": summary}))
    timings = {r.trial.digest: timing(places.folder(r.trial)) for course in courses for r in course.finished}
    with write_directory(EXPERIMENTS) as out:
        write_json(out / "variants.json", [describe_course(course, timings) for course in courses])
        write_json(out / "per_seed.json", per_seed)
        write_json(out / "summary.json", summary)
        write_json(out / "metrics.json", {variant: headline(sets) for variant, sets in summary.items()})
        for name, rows in (("trials", table_rows), ("curves", curves_rows)):
            every = [{"variant": course.variant.name, **row} for course in courses for row in rows(course.results)]
            _write_csv(out / f"{name}.csv", every)
        _write_csv(out / "pr_curves.csv", curves)
        (out / "scores").mkdir()
        for variant, seed, kept in scored:
            write_scores(kept, out / "scores" / variant, seed)
    for course in courses:
        print(f"experiment: {one_line(course)}")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from pipeline.grid import to_csv

    path.write_text(to_csv(rows) if rows else f"{_EMPTY[path.name]}\n", encoding="utf-8")


if __name__ == "__main__":
    run_stage(main)
