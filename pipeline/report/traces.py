"""Plotly traces and figures without colours. The page sets the colours: it knows whether it is light, dark or printed.

The `meta` of a trace says what the trace shows:

    model    number of the recipe; absent if the trace belongs to no recipe
    view     "mean" or "seeds"; absent if the trace is in both views
    seed     the seed, in the view of single seeds
    colour   one of the page's colours ("s0"…"s7", "muted"); absent if plotly colours by value
    band     the trace is an area, not a line
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go  # pyright: ignore[reportMissingTypeStubs]

from pipeline.report.blocks import Figure

COLOURS = 8
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "hexagon")
_DECIMALS = 4

Trace = dict[str, Any]
Meta = Mapping[str, Any]
SeedLine = tuple[Sequence[Any], Sequence[float | None], Sequence[Any]]
"""x, y and customdata of a seed's line; the last may be empty."""


def rounded(value: float) -> float:
    """Round to the digits that a figure can show, which keeps the page small."""
    return round(float(value), _DECIMALS) + 0.0


def escaped(text: str) -> str:
    """Text escaped for plotly, which reads some tags as formatting."""
    return html.escape(text, quote=False)


def _of_model(number: int) -> dict[str, Any]:
    return {"model": number, "colour": f"s{number % COLOURS}"}


def of_mean(number: int) -> dict[str, Any]:
    """The `meta` for the mean over a recipe's seeds."""
    return _of_model(number) | {"view": "mean"}


def of_seed(number: int, seed: int) -> dict[str, Any]:
    """The `meta` for one seed of a recipe."""
    return _of_model(number) | {"view": "seeds", "seed": seed}


def style(number: int) -> dict[str, Any]:
    """The dashes and markers of a recipe's lines, which distinguish recipes without colour."""
    return {
        "line": {"dash": _DASHES[number % len(_DASHES)], "width": 2},
        "marker": {"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 7},
    }


def line(
    x: Sequence[Any], y: Sequence[float | None], *, name: str, meta: Meta, hover: str, look: Mapping[str, Any], **more: Any
) -> Trace:
    """A line.

    Args:
        hover: plotly's template. It must not contain names, which are text that users chose.
    """
    return {
        "type": "scatter",
        "x": [rounded(v) if isinstance(v, float) else v for v in x],
        "y": [None if v is None else rounded(v) for v in y],
        "name": escaped(name),
        "legendgroup": escaped(name),
        "meta": dict(meta),
        "hovertemplate": "%{fullData.name}<br>" + hover,
        "mode": "lines",
        **look,
        **more,
    }


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], *, name: str, meta: Meta) -> Trace:
    """The area between two lines, for mean ± standard deviation."""
    return {
        "type": "scatter",
        "x": [rounded(v) for v in (*x, *reversed(x))],
        "y": [rounded(v) for v in (*high, *reversed(low))],
        "name": escaped(name),
        "legendgroup": escaped(name),
        "meta": {**meta, "band": True},
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def spread(x: Sequence[float], mean: Sequence[float], sd: Sequence[float | None], *, name: str, meta: Meta) -> list[Trace]:
    """A `band` around a mean; no traces if a point has no sd."""
    if any(value is None for value in sd):
        return []
    deviations = [value or 0.0 for value in sd]
    low = [m - s for m, s in zip(mean, deviations, strict=True)]
    high = [m + s for m, s in zip(mean, deviations, strict=True)]
    return [band(x, low, high, name=name, meta=meta)]


def error_bars(sd: Sequence[float | None]) -> dict[str, Any]:
    """Standard deviations as error bars, for points that no area should join."""
    if all(value is None for value in sd):
        return {}
    return {"error_y": {"type": "data", "array": [rounded(value or 0.0) for value in sd], "thickness": 1, "width": 3}}


def seeds_and_mean(
    number: int,
    name: str,
    seeds: Mapping[int, SeedLine],
    x: Sequence[Any],
    over_seeds: Sequence[Mapping[str, float]],
    *,
    hover: str,
    look: Mapping[str, Any],
    more_of_seed: str = "",
    bars: bool = False,
    **more: Any,
) -> list[Trace]:
    """The lines of a recipe: one for each seed, and their mean with ± one standard deviation.

    Args:
        over_seeds: mean and sd (`pipeline.report.numbers.over`) at each `x`.
        hover, more_of_seed: plotly's template, and what the lines of single seeds add to it.
        bars: draw the standard deviation as error bars, not as an area.
        more: goes into every line.
    """
    mean, sd = [point["mean"] for point in over_seeds], [point.get("sd") for point in over_seeds]
    traces: list[Trace] = []
    for i, (seed, (positions, values, data)) in enumerate(seeds.items()):
        extras = {"customdata": data} if data else {}
        legend = {"showlegend": i == 0 and more.get("showlegend", True)}
        tip = f"{hover}{more_of_seed}<extra>seed {seed}</extra>"
        traces.append(
            line(positions, values, name=name, meta=of_seed(number, seed), hover=tip, look=look, **{**more, **extras, **legend})
        )
    if not bars:
        traces += spread(x, mean, sd, name=name, meta=of_mean(number))
    extras, tip = error_bars(sd) if bars else {}, f"{hover}<extra>mean</extra>"
    return [*traces, line(x, mean, name=name, meta=of_mean(number), hover=tip, look=look, **more, **extras)]


def figure(
    id: str,
    title: str,
    caption: str,
    traces: Sequence[Trace],
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    height: int = 380,
    **layout: Any,
) -> Figure:
    """A figure with one panel (`layout` can add more). Plotly checks it and refuses unknown keys."""
    checked = go.Figure(
        data=list(traces),
        layout={
            "height": height,
            "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
            "xaxis": {"automargin": True, **x},
            "yaxis": {"automargin": True, **y},
            "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0},
            "hovermode": "closest",
            **layout,
        },
    ).to_dict()
    checked_layout = {key: value for key, value in checked["layout"].items() if key != "template"}
    return Figure(id=id, title=title, caption=caption, data=checked["data"], layout=checked_layout)
