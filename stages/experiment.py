"""Stage experiment: every variant through its grid and final seeds, scored on every set; the numbers of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.execution import Execution
from pipeline.files import write_directory
from pipeline.params import Params, TuneParams
from pipeline.placing import placed
from pipeline.project import EXPERIMENTS
from pipeline.trial import BEST, EarlyStopping, Timing, Trial, timing
from pipeline.variants import Variant, left_out, variant_of, variants_of

if TYPE_CHECKING:
    from pipeline.cluster import TrialResult
    from pipeline.experiment import Course


def main() -> None:
    """Read params and token stores, train and score the variants, write results/experiments."""
    p, execution = load_project()
    variants = variants_of(p)
    for line in left_out(p):
        print(f"experiment: {line}")
    if variants:
        _run(p, execution, variants)
    else:
        _write([], {}, {}, [], [])
        print("experiment: nothing to compare; experiments.variants and experiments.sweep (params.yaml) name no variant")


def _run(p: Params, execution: Execution, variants: Sequence[Variant]) -> None:
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking
    from pipeline.experiment import one_line, run_courses
    from pipeline.scoring import Model, numbers_of, score_models
    from pipeline.summary import flatten, mean_and_sd, pr_curve_rows

    root = Path.cwd()
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)

    def named(trial: Trial) -> str:
        # Variants of one objective have trials of one name.
        return f"{variant_of(trial, variants)}: {trial.name}"

    with (
        cluster.Places.of_project(root, execution.cluster.storage) as places,
        tracking.stage_of(tracker, parent),
        cluster.session_on_demand(execution.cluster) as session,
    ):

        def run(trials: list[Trial], tune: TuneParams) -> Sequence[TrialResult]:
            return cluster.run_trials(trials, places, session, tracker, parent, EarlyStopping.of(tune), named)

        courses = run_courses(variants, root, run)
        cluster.warn_failures([result for course in courses for result in course.results], named)
        final = [(course, result) for course in courses for result in course.finished]
        models = [
            Model(
                name=f"{course.variant.name}, seed {result.trial.seed}",
                folder=places.folder(result.trial) / BEST,
                objective=result.trial.objective,
            )
            for course, result in final
        ]
        encode = partial(cluster.encode_stores, session=session)
        per_seed: dict[str, dict[str, Any]] = {}
        curves: list[dict[str, Any]] = []
        scored: list[tuple[str, str, Path]] = []
        for (course, result), scores in zip(final, score_models(models, root, places, encode), strict=True):
            variant, seed = course.variant.name, f"seed-{result.trial.seed}"
            scored.append((variant, seed, scores.folder))
            per_seed.setdefault(variant, {})[seed] = numbers_of(scores.tables, p.evaluate)
            curves += [{"variant": variant, **row} for name, t in scores.tables.items() for row in pr_curve_rows(name, seed, t)]
            if result.outcome is not None:
                run_id = tracking.ensure_trial(tracker, parent, result.trial, result.outcome, named(result.trial))
                tracking.log_metrics(tracker, run_id, flatten(per_seed[variant][seed]))
        summary = {variant: mean_and_sd(seeds) for variant, seeds in per_seed.items()}
        tracking.log_metrics(tracker, parent, flatten({"experiments": summary}))
        timings = {r.trial.digest: timing(places.folder(r.trial)) for course in courses for r in course.finished}
        _write(courses, timings, per_seed, curves, scored)
    for course in courses:
        print(f"experiment: {one_line(course)}")


def _write(
    courses: Sequence[Course],
    timings: Mapping[str, Timing],
    per_seed: Mapping[str, Mapping[str, Any]],
    pr_curves: Sequence[Mapping[str, Any]],
    scored: Sequence[tuple[str, str, Path]],
) -> None:
    """Write results/experiments, all of it or nothing; `scored` has the variant, seed-N and the scores of each model."""
    from pipeline.comparison import write_comparison
    from pipeline.scoring import write_scores

    with write_directory(EXPERIMENTS) as out:
        write_comparison(out, courses, timings, per_seed, pr_curves)
        (out / "scores").mkdir()
        for variant, seed, kept in scored:
            write_scores(kept, out / "scores" / variant, seed)


if __name__ == "__main__":
    run_stage(placed("experiment", main, lambda p: bool(variants_of(p))))
