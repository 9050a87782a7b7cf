"""How the report writes numbers. Both pages use only these functions, in every table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

NONE = "–"
"""Shown where a number is missing."""
UNDEFINED = "not defined"
"""Shown where no number can exist."""


def percent(value: float | None, places: int = 1) -> str:
    """A number of the evaluation, in percent (or × 100).

    It is rounded to the four places of DVC's metrics first, so rounding the output of `dvc metrics show` gives the same digits.
    """
    # Adding 0 turns −0.0 into 0.0.
    return NONE if value is None else f"{round(round(value, 4), places) + 0.0:.{places}f}"


def mean_sd(summary: Mapping[str, float] | None, places: int = 1) -> str:
    """`mean ± sd` over seeds; for a single seed, only the value."""
    if summary is None:
        return NONE
    mean = percent(summary["mean"], places)
    return f"{mean} ± {percent(summary['sd'], places)}" if "sd" in summary else mean


def over(values: Sequence[float]) -> dict[str, float]:
    """Mean and sd (with n − 1; absent for one value), in the form that `mean_sd` takes."""
    summary = {"mean": statistics.fmean(values)}
    if len(values) > 1:
        summary["sd"] = statistics.stdev(values)
    return summary


def each_seed(values: Mapping[int, float]) -> str:
    """The value of each seed, to the four places of DVC's metrics."""
    return ", ".join(f"seed {seed}: {percent(value, 4)}" for seed, value in values.items())


def count(number: float) -> str:
    """A whole number."""
    return f"{number:,.0f}"


def rate(value: float) -> str:
    """A learning rate or another factor."""
    return f"{value:g}"
