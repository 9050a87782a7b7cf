"""How much the main recipe gains over each variant, with an interval: running text, transfer tasks, operation rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.data.schema import OPERATIONS
from pipeline.evaluation.bootstrap import Statistic, mean_over, paired_bootstrap, share
from pipeline.report.content import Content
from pipeline.report.files import contents_of, read_table
from pipeline.report.numbers import NONE, percent
from pipeline.report.recipe import Recipe
from pipeline.utils.errors import UserError

RESAMPLES, CONFIDENCE = 1000, 0.95
NOTE = (
    f"Gain over a variant: the main recipe minus the variant, with the {100 * CONFIDENCE:g} % interval of a paired bootstrap "
    "over the documents of running text, the rows of a task, or the sentences that operations are about. A set of one document "
    "has no interval. With several seeds, it is the difference of their means, and the interval does not include their spread. "
    "The development set also chose the checkpoints."
)


def gain_rows(content: Content, measures: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Variant → "+5.2 [+4.1, +6.3]" for each (set, metric), in points; without variants that have no result.

    Raises:
        UserError: a table of scores is missing or damaged, or two recipes were scored on different rows.
    """
    variants = [recipe for recipe in content.recipes[1:] if recipe.summary]
    cells: dict[tuple[str, str, str], str] = {}
    for set_name in dict.fromkeys(name for name, _ in measures):
        metrics = [metric for name, metric in measures if name == set_name]
        compared: dict[tuple[str, str], tuple[Statistic, Statistic]] = {}
        new, groups = _statistics(content.main, set_name, metrics)
        for recipe in variants:
            old, theirs = _statistics(recipe, set_name, metrics)
            if not np.array_equal(groups, theirs):
                raise UserError(
                    f"{recipe.scores / set_name}: has other rows than {content.main.scores / set_name}; run `dvc repro`"
                )
            compared |= {(recipe.name, metric): (old[metric], new[metric]) for metric in metrics}
        names = {f"{i}": key for i, key in enumerate(compared)}
        gains = paired_bootstrap(
            {i: compared[key] for i, key in names.items()}, groups, resamples=RESAMPLES, confidence=CONFIDENCE
        )
        for i, (recipe_name, metric) in names.items():
            gain = gains[i]
            interval = f" [{_signed(gain.low)}, {_signed(gain.high)}]" if np.isfinite(gain.error) else ""
            cells[recipe_name, set_name, metric] = f"{_signed(gain.gain)}{interval}"
    return {recipe.name: [cells.get((recipe.name, *measure), NONE) for measure in measures] for recipe in variants}


def _statistics(recipe: Recipe, set_name: str, metrics: Sequence[str]) -> tuple[dict[str, Statistic], NDArray[np.int64]]:
    """Metric → its statistic over the mean of the seeds for each row; and (n,) the group that each row is drawn with.

    A metric of operation rows is the mean over the operations, or, as OPERATION.NAME, over the rows of one.
    """
    names = {metric: metric.rpartition(".")[2] for metric in metrics}
    values: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names.values()}
    groups: NDArray[np.int64] | None = None
    operation: NDArray[np.int8] | None = None
    for seed in recipe.per_seed:
        path = recipe.scores / set_name / f"seed-{seed}.parquet"
        table = read_table(path)
        with contents_of(path):
            drawn_with = next(column for column in ("document", "whole", "row") if column in table.column_names)
            group = table.column(drawn_with).to_numpy()
            if "operation" in table.column_names:
                operation = table.column("operation").to_numpy()
            for name in values:
                values[name].append(table.column(name).to_numpy())
        if groups is not None and not np.array_equal(group, groups):
            raise UserError(f"{path}: has other rows than the scores of another seed; run `dvc repro`")
        groups = group
    assert groups is not None, "a recipe with a summary has seeds"
    statistics: dict[str, Statistic] = {}
    for metric, name in names.items():
        mean = np.mean(values[name], axis=0)
        if operation is None:
            statistics[metric] = share(mean)
        elif kind := metric.rpartition(".")[0]:
            statistics[metric] = share(mean, operation == [*OPERATIONS].index(kind))
        else:
            statistics[metric] = mean_over(operation, mean)
    return statistics, groups


def _signed(value: float) -> str:
    text = percent(value)
    return text if text.startswith("-") else f"+{text}"
