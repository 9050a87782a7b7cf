"""Statistics over seeds, and the files that pass them from stage to stage."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.evaluation.set_kind import kind_of
from pipeline.families.family import all_metrics
from pipeline.trials.recipe_run import MAIN
from pipeline.trials.trial import Outcome, Trial
from pipeline.utils.atomic_io import read_json, to_csv, write_json
from pipeline.utils.errors import UserError

Summary = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Recipe → set → metric → mean, min, max and, for more than one seed, sd."""

# Points of a plotted precision-recall curve; otherwise a set of 10,000 pairs would have 10,000.
_CURVE_POINTS = 200


def read_outcomes(path: Path) -> list[tuple[Trial, Outcome]]:
    """The final trials and their outcomes, from the file that stage train wrote.

    Raises:
        UserError: the file is missing, or another version of this program wrote it.
    """
    try:
        return [(Trial.model_validate_json(json.dumps(entry["trial"])), Outcome(**entry["outcome"])) for entry in read_json(path)]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: another version of this program wrote it; run `dvc repro`") from None


def mean_and_sd(seeds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """seed → set → metric → value becomes set → metric → mean, sd (n − 1; absent for one seed), min and max.

    If one seed lacks a metric (a correlation with a constant) or its value is not finite, the metric is left out: a mean over
    fewer seeds would look like a mean over all.
    """
    out: dict[str, dict[str, dict[str, float]]] = {}
    first = next(iter(seeds.values()))
    for set_name, numbers in first.items():
        out[set_name] = {}
        for key in numbers:
            values = [seed[set_name][key] for seed in seeds.values() if math.isfinite(seed[set_name].get(key, math.nan))]
            if len(values) < len(seeds):
                continue
            summary = {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
            if len(values) > 1:
                summary["sd"] = statistics.stdev(values)
            out[set_name][key] = summary
    return out


def headlines(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """set → metric → value or mean, of the metrics that are headlines."""
    return {
        name: {
            key: round(of[key]["mean"] if isinstance(of[key], Mapping) else of[key], 4)
            for key, metric in all_metrics().items()
            if metric.headline and key in of and metric.unless not in of
        }
        for name, of in sets.items()
    }


def write_evaluated(folder: Path, per_seed: Mapping[str, Mapping[str, Any]], pr_curves: Sequence[Mapping[str, Any]]) -> Summary:
    """Write what the scores of some recipes give, and a folder for the scores; returns the summary.

    Args:
        per_seed: recipe → seed-N → set → metric → value.
        pr_curves: rows of `pr_curve_rows`, each with its recipe as `variant`.
    """
    summary = {recipe: mean_and_sd(seeds) for recipe, seeds in per_seed.items()}
    means = {recipe: headlines(sets) for recipe, sets in summary.items()}
    write_json(folder / "per_seed.json", per_seed)
    write_json(folder / "summary.json", summary)
    # For `dvc metrics`. In its tables, the main recipe's columns need no prefix.
    write_json(folder / "metrics.json", means.pop(MAIN, {}) | means)
    header = ("variant", "set", "seed", "recall", "precision", "threshold")
    (folder / "pr_curves.csv").write_text(to_csv(pr_curves, header), encoding="utf-8")
    (folder / "scores").mkdir(exist_ok=True)
    return summary


def flat_headlines(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`headlines` as set.metric → value; those that are not finite are left out, because no tracker can plot them."""
    every = {f"{name}.{key}": value for name, of in headlines(sets).items() for key, value in of.items()}
    return {name: value for name, value in every.items() if math.isfinite(value)}


def pr_curve_rows(set_name: str, seed: str, table: pa.Table) -> list[dict[str, Any]]:
    """Precision-recall curve of a scored table: rows of set, seed, recall, precision, threshold; none if it has none."""
    if (curve := kind_of(table.column_names).curve(table)) is None:
        return []
    precision, recall, threshold = curve
    columns = {"recall": recall, "precision": precision, "threshold": threshold}
    return [
        {"set": set_name, "seed": seed, **{name: round(float(values[i]), 6) for name, values in columns.items()}}
        for i in np.unique(np.linspace(0, len(threshold) - 1, _CURVE_POINTS).astype(int))
    ]
