"""What the figures show, taken from the per-pair scores: one look at every table of scores, then only small numbers are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline import analysis
from pipeline.data.schema import ENTAILMENT
from pipeline.metrics import EntailmentIf
from pipeline.report.blocks import Cell
from pipeline.report.content import Content
from pipeline.report.files import contents_of, read_table
from pipeline.report.numbers import NONE, UNDEFINED, each_seed, mean_sd, over
from pipeline.report.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Precision and recall of calling entailment at the chosen threshold."""

    threshold: float
    recall: float
    precision: float | None
    """None where nothing is called entailment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One set scored by one model."""

    seed: int
    point: OperatingPoint
    direction: tuple[analysis.DirectionBin, ...]
    log_var: analysis.LogVarByLength | None
    calibration: analysis.Calibration
    similarity: analysis.SimilarityByLabel | None
    called: tuple[analysis.Called, ...]


Measures = dict[tuple[int, str], list[Measured]]
"""(number of the recipe, set) → its seeds; recipes without a result have none."""


def measure(content: Content) -> Measures:
    """Look at every recipe, set and seed.

    Raises:
        UserError: a table of scores is missing or damaged.
    """
    return {
        (k, name): [_measured(recipe, name, seed, content.entailment_if) for seed in recipe.per_seed]
        for k, recipe in enumerate(content.recipes)
        if recipe.summary
        for name in content.nli_sets
    }


def _measured(recipe: Recipe, set_name: str, seed: int, entailment_if: EntailmentIf) -> Measured:
    path = recipe.scores / set_name / f"seed-{seed}.parquet"
    table = read_table(path)
    with contents_of(path):
        threshold = recipe.per_seed[seed][set_name]["threshold"]
        score = table.column("score").to_numpy()
        entailed = table.column("label").to_numpy() == ENTAILMENT
        called = score >= threshold if entailment_if == ">=" else score > threshold
        right = int((called & entailed).sum())
        return Measured(
            seed=seed,
            point=OperatingPoint(
                threshold=threshold,
                recall=right / max(int(entailed.sum()), 1),
                precision=right / int(called.sum()) if np.any(called) else None,
            ),
            direction=analysis.direction_by_length_ratio(table) if entailed.any() else (),
            log_var=analysis.log_var_by_length(table),
            calibration=analysis.calibration(table),
            similarity=analysis.similarity_by_label(table),
            called=analysis.confusion(table, threshold, entailment_if),
        )


def share_cell(values: Iterable[tuple[int, float | None]], defined: bool = True) -> Cell:
    """A share over seeds, in percent, given as (seed, share in [0, 1] or None)."""
    if not defined:
        return Cell(text=UNDEFINED)
    given = {seed: 100 * value for seed, value in values if value is not None}
    return Cell(text=mean_sd(over(list(given.values()))), detail=each_seed(given)) if given else Cell(text=NONE)
