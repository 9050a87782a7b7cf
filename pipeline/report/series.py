"""The numbers behind the page's figures of single sets, as CSV files: for DVC's plots, for MLflow and for your own plots.

Each row is a point of a line: the recipe, the set, the seed, then the point itself. Shares are in percent, as on the page. An
undefined value is empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.evaluation.analysis import DirectionBin
from pipeline.report.content import Content
from pipeline.report.measures import Measured, Measures
from pipeline.trials.grid import to_csv

Point = dict[str, Any]

# Half the width of a bin, in octaves. The open bins at both ends are drawn this far outside their limit.
_HALF_BIN = 0.25


def write_series(content: Content, measures: Measures, folder: Path) -> None:
    """Write similarity.csv, direction_by_length.csv, variance_by_length.csv, calibration.csv (only a header without points)."""
    folder.mkdir()
    for name, (columns, points) in _SERIES.items():
        rows = [
            {"recipe": content.recipes[k].name, "set": set_name, "seed": f"seed-{model.seed}"} | point
            for (k, set_name), seeds in measures.items()
            for model in seeds
            for point in points(model)
        ]
        (folder / f"{name}.csv").write_text(to_csv(rows, ("recipe", "set", "seed", *columns)), encoding="utf-8")


def _similarity(one: Measured) -> Iterator[Point]:
    if one.similarity is None:
        return
    middles = [(a + b) / 2 for a, b in itertools.pairwise(one.similarity.edges)]
    for label in one.similarity.labels:
        for middle, hp, ph in zip(middles, label.sim_hp, label.sim_ph, strict=True):
            share = {"sim_hp": 100 * hp / label.pairs, "sim_ph": 100 * ph / label.pairs}
            yield {"label": label.label, "similarity": middle, **share}


def _direction(one: Measured) -> Iterator[Point]:
    for part in one.direction:
        yield {
            "log2_length_ratio": _octaves(part),
            "pairs": part.pairs,
            "sim": _percent(part.sim),
            "var": _percent(part.var),
            "length_only": _percent(part.length_only),
        }


def _octaves(part: DirectionBin) -> float:
    """The middle of a bin of the ratio premise tokens / hypothesis tokens, as a logarithm to base 2."""
    if part.lower == 0:
        return math.log2(part.upper or 1.0) - _HALF_BIN
    if part.upper is None:
        return math.log2(part.lower) + _HALF_BIN
    return round((math.log2(part.lower) + math.log2(part.upper)) / 2, 9)


def _variance(one: Measured) -> Iterator[Point]:
    for part in one.log_var.by_tokens if one.log_var else ():
        sd = "" if part.sd is None else part.sd
        yield {"tokens": part.tokens, "sentences": part.sentences, "mean_log_var": part.mean, "sd": sd}


def _calibration(one: Measured) -> Iterator[Point]:
    for part in one.calibration.equal_width.bins:
        yield {"mean_score": part.mean_score, "entailed": _percent(part.entailed), "pairs": part.pairs}


def _percent(share: float | None) -> float | str:
    return "" if share is None else 100 * share


_SERIES: dict[str, tuple[tuple[str, ...], Callable[[Measured], Iterator[Point]]]] = {
    "similarity": (("label", "similarity", "sim_hp", "sim_ph"), _similarity),
    "direction_by_length": (("log2_length_ratio", "pairs", "sim", "var", "length_only"), _direction),
    "variance_by_length": (("tokens", "sentences", "mean_log_var", "sd"), _variance),
    "calibration": (("mean_score", "entailed", "pairs"), _calibration),
}
