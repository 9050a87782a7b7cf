"""The files of a comparison of variants, results/experiments: numbers, tables, curves (the per-pair scores lie beside them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.experiment import Course
from pipeline.files import write_json
from pipeline.grid import curves_rows, table_rows, to_csv
from pipeline.summary import headline, mean_and_sd
from pipeline.trial import Timing

# Columns of tables without rows, for the plots.
_EMPTY = {
    "trials.csv": "variant,trial",
    "curves.csv": "variant,trial,step,loss,learning_rate,dev_pr_auc",
    "pr_curves.csv": "variant,set,seed,recall,precision,threshold",
}


def write_comparison(
    folder: Path,
    courses: Sequence[Course],
    timings: Mapping[str, Timing],
    per_seed: Mapping[str, Mapping[str, Any]],
    pr_curves: Sequence[Mapping[str, Any]],
) -> None:
    """Write everything but the scores.

    Args:
        timings: of final trials, by digest.
        per_seed: variant → seed-N → set → metric → value.
        pr_curves: rows of `pipeline.summary.pr_curve_rows`, with the variant.
    """
    summary = {variant: mean_and_sd(seeds) for variant, seeds in per_seed.items()}
    write_json(folder / "variants.json", [_described(course, timings) for course in courses])
    write_json(folder / "per_seed.json", per_seed)
    write_json(folder / "summary.json", summary)
    write_json(folder / "metrics.json", {variant: headline(sets) for variant, sets in summary.items()})
    tables = {
        "trials.csv": [{"variant": c.variant.name, **row} for c in courses for row in table_rows(c.results)],
        "curves.csv": [{"variant": c.variant.name, **row} for c in courses for row in curves_rows(c.results)],
        "pr_curves.csv": pr_curves,
    }
    for name, rows in tables.items():
        (folder / name).write_text(to_csv(rows) if rows else f"{_EMPTY[name]}\n", encoding="utf-8")


def _described(course: Course, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """The variant's entry of variants.json; `timings` by trial digest."""
    objective = course.variant.params.objective
    return {
        "name": course.variant.name,
        "overrides": course.variant.overrides,
        "objective": objective.name,
        "similarity": objective.similarity,
        "uses_variance": objective.name != "simcse",
        "choice": course.choice.model_dump(mode="json") if course.choice else None,
        "failure": course.failure,
        "seeds": [
            {
                "seed": result.trial.seed,
                "trial": result.trial.digest,
                "best_dev_pr_auc": result.outcome.best_dev_pr_auc,
                "best_step": result.outcome.best_step,
                "total_steps": result.outcome.total_steps,
                "triplets": result.outcome.triplets,
                "same_premise_pairs": result.outcome.same_premise_pairs,
                **asdict(timings[result.trial.digest]),
            }
            for result in course.final
            if result.outcome is not None
        ],
        "failures": [
            {"trial": result.trial.name, "seed": result.trial.seed, "reason": result.failure}
            for result in course.results
            if result.failure
        ],
    }
