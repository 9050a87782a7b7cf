"""Differences between the recipes of a project, for every pair of them, with the intervals of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.config.paths import DEV_TOKENS, TEST_TOKENS
from pipeline.evaluation.bootstrap import Statistic, paired_bootstrap
from pipeline.evaluation.set_kind import SetKind, Tables, kinds_in
from pipeline.report import page
from pipeline.report.results import Recipe, read_scores
from pipeline.utils.errors import UserError

Difference = Mapping[str, str | float]
"""set, metric, recipe, against, and in points: value, other, difference, low, high."""

_NAMES, _VALUES = ("set", "metric", "recipe", "against"), ("value", "other")
_RESAMPLES, _CONFIDENCE = 500, 0.95
_CAPTION = (
    f"Recipe minus the other one, in points, with the {100 * _CONFIDENCE:g} % interval of a paired bootstrap over premises, "
    "documents, rows of a task, or sentences of operations. One document has no interval. Values are means over the seeds; the "
    "interval does not include their spread. Bold: the interval does not contain 0. differences.csv and differences.tex have the "
    "same numbers."
)


def differences(recipes: Iterable[Recipe], params: EvaluateParams, root: Path) -> list[Difference]:
    """A row for each set, metric and pair of recipes that have results.

    Raises:
        UserError: a table of scores is missing or damaged, or two models were scored on different rows.
    """
    scored = [recipe for recipe in recipes if recipe.per_seed]
    tables = {
        (recipe.name, seed): {name: read_scores(recipe, name, seed)[1] for name in recipe.summary}
        for recipe in (scored if len(scored) > 1 else ())
        for seed in recipe.per_seed
    }
    rows: list[Difference] = []
    for store in (root / DEV_TOKENS, root / TEST_TOKENS) if tables else ():
        for kind, name in kinds_in(store):
            groups = kind.groups(store, name)
            _check_rows(kind, name, tables)
            statistics = {
                one.name: _mean([kind.statistics(name, tables[one.name, seed], params) for seed in one.per_seed])
                for one in scored
            }
            compared = [
                (metric, a, b) for a, b in combinations(statistics, 2) for metric in statistics[a] if metric in statistics[b]
            ]
            pairs = {str(k): (statistics[b][metric], statistics[a][metric]) for k, (metric, a, b) in enumerate(compared)}
            found = paired_bootstrap(pairs, groups, resamples=_RESAMPLES, confidence=_CONFIDENCE).values()
            for (metric, a, b), gain in zip(compared, found, strict=True):
                row = {"set": name, "metric": metric, "recipe": a, "against": b, "value": gain.new, "other": gain.old}
                rows.append({**row, "difference": gain.gain, "low": gain.low, "high": gain.high})
    return rows


def _check_rows(kind: SetKind, name: str, tables: Mapping[tuple[str, int], Tables]) -> None:
    of = {model: sets[name] for model, sets in tables.items()}
    first = next(iter(of.values()))
    same = [column for column in kind.same if column in first.column_names]
    for (recipe, seed), table in of.items():
        if len(table) != len(first) or table.select(same) != first.select(same):
            raise UserError(f"{recipe}, seed {seed}: scored on other rows of {name} than the other models; run `dvc repro`")


def _mean(seeds: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """The mean of each metric over the seeds, on the same draws; without metrics that a seed lacks."""

    def over(each: Sequence[Statistic]) -> Statistic:
        # Each recipe is compared with several others on the same draws.
        last: list[NDArray[np.float64]] = []

        def mean(times: NDArray[np.float64]) -> NDArray[np.float64]:
            if not last or last[0] is not times:
                last[:] = times, np.asarray(np.mean([statistic(times) for statistic in each], axis=0))
            return last[1]

        return mean

    shared = [metric for metric in seeds[0] if all(metric in seed for seed in seeds)]
    return {metric: over([seed[metric] for seed in seeds]) for metric in shared}


def table(rows: Sequence[Difference]) -> list[page.Table]:
    """The table of the report."""

    def interval(row: Difference) -> page.Cell:
        low, high = float(row["low"]), float(row["high"])
        return page.Cell(_interval(row), best=low > 0 or high < 0)

    columns = {key: (lambda row, key=key: str(row[key])) for key in _NAMES}
    numbers = {key: (lambda row, key=key: page.percent(float(row[key]))) for key in _VALUES}
    title = "Differences between recipes"
    return page.table("differences", title, _CAPTION, {**columns, **numbers, "difference": interval}, rows, folded=True)


def write(rows: Sequence[Difference], folder: Path) -> None:
    """Write differences.csv, and differences.tex: a table of LaTeX's package booktabs."""
    if not rows:
        return
    frame = pd.DataFrame(rows)
    frame.round(4).to_csv(folder / "differences.csv", index=False)
    shown = frame.assign(difference=[_interval(row) for row in rows])[[*_NAMES, *_VALUES, "difference"]]
    tex = folder / "differences.tex"
    shown.to_latex(tex, index=False, escape=True, column_format="llllrrr", float_format="%.1f")


def _interval(row: Difference) -> str:
    interval = f" [{row['low']:+.1f}, {row['high']:+.1f}]" if row["low"] == row["low"] else ""
    return f"{row['difference']:+.1f}{interval}"
