"""How a number is written in the report; both pages, every table, through these functions alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

NONE = "–"
"""Where there is no number."""
UNDEFINED = "not defined"
"""Where there can be none."""


def percent(value: float | None, places: int = 1) -> str:
    """A number of the evaluation, which are in percent (or × 100).

    It is rounded to the four places of DVC's metrics first, so that rounding what `dvc metrics show` says gives these digits too.
    """
    # Adding 0 turns −0.0 into 0.0.
    return NONE if value is None else f"{round(round(value, 4), places) + 0.0:.{places}f}"


def mean_sd(summary: Mapping[str, float] | None, places: int = 1) -> str:
    """`mean ± sd` over seeds; the value alone for one seed."""
    if summary is None:
        return NONE
    mean = percent(summary["mean"], places)
    return f"{mean} ± {percent(summary['sd'], places)}" if "sd" in summary else mean


def over(values: Sequence[float]) -> dict[str, float]:
    """Mean and sd (n − 1; absent for one value), as `mean_sd` takes them."""
    summary = {"mean": statistics.fmean(values)}
    if len(values) > 1:
        summary["sd"] = statistics.stdev(values)
    return summary


def each_seed(values: Mapping[int, float]) -> str:
    """The value of every seed, to the four places of DVC's metrics."""
    return ", ".join(f"seed {seed}: {percent(value, 4)}" for seed, value in values.items())


def count(number: float) -> str:
    """A whole number."""
    return f"{number:,.0f}"


def rate(value: float) -> str:
    """A learning rate or another factor."""
    return f"{value:g}"
