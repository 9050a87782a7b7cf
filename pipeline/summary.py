"""Numbers over seeds, and the files that carry them from stage to stage."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from pipeline import metrics
from pipeline.data.schema import ENTAILMENT
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.trial import Outcome, Trial

# Direction never without what length alone says.
_HEADLINE = (
    "pr_auc",
    "accuracy",
    "direction.sim",
    "direction.length_only",
    "direction.not_longer_sim",
    "direction.not_longer_length_only",
    "direction.one_way_sim",
    "direction.one_way_length_only",
    "spearman_cosine",
)
# Points of a plotted precision-recall curve; a set of 10,000 pairs has as many otherwise.
_CURVE_POINTS = 200


def read_outcomes(path: Path) -> list[tuple[Trial, Outcome]]:
    """The final trials and their outcomes, as stage train wrote them.

    Raises:
        UserError: the file is missing, or another version of this program wrote it.
    """
    try:
        return [(Trial.model_validate_json(json.dumps(entry["trial"])), Outcome(**entry["outcome"])) for entry in read_json(path)]
    except (ValidationError, KeyError, TypeError):
        raise UserError(f"{path}: another version of this program wrote it; run `dvc repro`") from None


def mean_and_sd(seeds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """seed → set → metric → value becomes set → metric → mean, sd (n − 1; absent for one seed), min and max.

    A metric that a seed does not have (a correlation with a constant) has none over seeds: a mean over fewer would look like one
    over all.
    """
    out: dict[str, dict[str, dict[str, float]]] = {}
    first = next(iter(seeds.values()))
    for set_name, numbers in first.items():
        out[set_name] = {}
        for key in numbers:
            values = [seed[set_name][key] for seed in seeds.values() if key in seed[set_name]]
            if len(values) < len(seeds):
                continue
            summary = {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
            if len(values) > 1:
                summary["sd"] = statistics.stdev(values)
            out[set_name][key] = summary
    return out


def headline(summary: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The few means that `dvc metrics show` and `diff` can show side by side: set → metric → mean over seeds."""
    return {
        set_name: {key: round(numbers[key]["mean"], 4) for key in _HEADLINE if key in numbers}
        for set_name, numbers in summary.items()
    }


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested numbers as `a.b.c` → value; what is not finite is left out, because no tracker can plot it."""
    flat: dict[str, float] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif math.isfinite(value):
            flat[f"{prefix}{key}"] = float(value)
    return flat


def pr_curve_rows(set_name: str, seed: str, table: pa.Table) -> list[dict[str, Any]]:
    """Precision-recall curve of a scored table: set, seed, recall, precision, threshold; none for graded or one-class sets."""
    if "label" not in table.column_names:
        return []
    labels = table.column("label").to_numpy() == ENTAILMENT
    if labels.all() or not labels.any():
        return []
    precision, recall, threshold = metrics.pr_curve(labels, table.column("score").to_numpy())
    return [
        {
            "set": set_name,
            "seed": seed,
            "recall": round(float(recall[i]), 6),
            "precision": round(float(precision[i]), 6),
            "threshold": round(float(threshold[i]), 6),
        }
        for i in np.unique(np.linspace(0, len(threshold) - 1, _CURVE_POINTS).astype(int))
    ]
