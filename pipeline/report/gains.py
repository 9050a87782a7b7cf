"""How much the main recipe gains on each variant, with an interval: sets of running text and transfer tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation.bootstrap import paired_bootstrap, share
from pipeline.report.content import Content
from pipeline.report.files import contents_of, read_table
from pipeline.report.numbers import NONE, percent
from pipeline.report.recipe import Recipe

RESAMPLES, CONFIDENCE = 1000, 0.95
NOTE = (
    "gain on: the main recipe minus the variant, with the 95 % interval of a paired bootstrap over documents of running text, or "
    "over the rows of a task. With several seeds, it is the difference of the means; the interval does not hold their spread."
)


def gain_rows(content: Content, measures: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Variant → "+5.2 [+4.1, +6.3]" for each (set, metric), in points; without variants that have no result.

    Raises:
        UserError: a table of scores is missing or damaged.
    """
    variants = [recipe for recipe in content.recipes[1:] if recipe.summary]
    return {recipe.name: [_gain(content.main, recipe, *measure) for measure in measures] for recipe in variants}


def _gain(main: Recipe, variant: Recipe, set_name: str, metric: str) -> str:
    if not (main.numbers(set_name, metric) and variant.numbers(set_name, metric)):
        return NONE
    new, group = _shares(main, set_name, metric)
    old, _ = _shares(variant, set_name, metric)
    found = paired_bootstrap({metric: (share(old), share(new))}, group, resamples=RESAMPLES, confidence=CONFIDENCE)[metric]
    # A single document has no interval.
    interval = f" [{_signed(found.low)}, {_signed(found.high)}]" if np.isfinite(found.error) else ""
    return f"{_signed(found.gain)}{interval}"


def _shares(recipe: Recipe, set_name: str, metric: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(n,) the share of seeds that are right on each row, and (n,) the group it is drawn with."""
    rows: list[NDArray[np.bool_]] = []
    group = np.empty(0, np.int64)
    for seed in recipe.per_seed:
        path = recipe.scores / set_name / f"seed-{seed}.parquet"
        table = read_table(path)
        with contents_of(path):
            rows.append(table.column(metric).to_numpy())
            group = table.column("document" if "document" in table.column_names else "row").to_numpy()
    return np.mean(rows, axis=0), group


def _signed(value: float) -> str:
    text = percent(value)
    return text if text.startswith("-") else f"+{text}"
