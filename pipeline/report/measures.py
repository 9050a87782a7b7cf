"""The numbers behind the figures. Each table of per-pair scores is read once, and only small summaries of it are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import ENTAILMENT
from pipeline.evaluation import analysis
from pipeline.report.blocks import Cell
from pipeline.report.content import Content
from pipeline.report.files import contents_of, read_table
from pipeline.report.numbers import NONE, UNDEFINED, each_seed, mean_sd, over
from pipeline.report.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Precision and recall of entailment at the chosen threshold."""

    threshold: float
    recall: float
    precision: float | None
    """None if no pair is called entailment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The numbers of one model on one set."""

    seed: int
    point: OperatingPoint
    direction: tuple[analysis.DirectionBin, ...]
    log_var: analysis.LogVarByLength | None
    calibration: analysis.Calibration
    similarity: analysis.SimilarityByLabel | None
    called: tuple[analysis.Called, ...]


Measures = dict[tuple[int, str], list[Measured]]
"""(number of the recipe, set) → one entry for each seed; recipes without a result are left out."""


def measure(content: Content) -> Measures:
    """Compute the numbers for every recipe, set and seed.

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
        positive = called(score, threshold, entailment_if)
        right = int((positive & entailed).sum())
        return Measured(
            seed=seed,
            point=OperatingPoint(
                threshold=threshold,
                recall=right / max(int(entailed.sum()), 1),
                precision=right / int(positive.sum()) if np.any(positive) else None,
            ),
            direction=analysis.direction_by_length_ratio(table) if entailed.any() else (),
            log_var=analysis.log_var_by_length(table),
            calibration=analysis.calibration(table),
            similarity=analysis.similarity_by_label(table),
            called=analysis.confusion(table, threshold, entailment_if),
        )


def share_cell(values: Iterable[tuple[int, float | None]], defined: bool = True) -> Cell:
    """A cell with a share over seeds, in percent.

    Args:
        values: (seed, share in [0, 1] or None).
    """
    if not defined:
        return Cell(text=UNDEFINED)
    shares = {seed: 100 * value for seed, value in values if value is not None}
    return Cell(text=mean_sd(over(list(shares.values()))), detail=each_seed(shares)) if shares else Cell(text=NONE)
