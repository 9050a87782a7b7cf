"""Plotly traces and figures without colours: those are the page's, which knows whether it is light, dark or on paper.

`meta` of a trace tells the page what it shows. `model`: number of the recipe, absent for what belongs to none; `view`: "mean" or
"seeds", absent for what stands in both; `seed`: which of the single seeds; `colour`: one of the page's colours ("s0"…"s7",
"muted"), absent where plotly colours by value; `band`: an area rather than a line.
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


def rounded(value: float) -> float:
    """As many digits as a figure can show, so that the page stays lean."""
    return round(float(value), _DECIMALS) + 0.0


def escaped(text: str) -> str:
    """Text for plotly, which takes some tags for formatting."""
    return html.escape(text, quote=False)


def _of_model(number: int) -> dict[str, Any]:
    return {"model": number, "colour": f"s{number % COLOURS}"}


def of_mean(number: int) -> dict[str, Any]:
    """Meta of the mean over a recipe's seeds."""
    return _of_model(number) | {"view": "mean"}


def of_seed(number: int, seed: int) -> dict[str, Any]:
    """Meta of one seed of a recipe."""
    return _of_model(number) | {"view": "seeds", "seed": seed}


def style(number: int) -> dict[str, Any]:
    """How a recipe's lines look besides their colour, so that colour is never alone in telling them apart."""
    return {
        "line": {"dash": _DASHES[number % len(_DASHES)], "width": 2},
        "marker": {"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 7},
    }


def line(
    x: Sequence[Any], y: Sequence[float | None], *, name: str, meta: Meta, hover: str, look: Mapping[str, Any], **more: Any
) -> Trace:
    """A line.

    Args:
        hover: plotly's template, without names in it: they are text that somebody else chose.
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
    """`band` around a mean; none where a point has no spread."""
    if any(value is None for value in sd):
        return []
    given = [value or 0.0 for value in sd]
    low = [m - s for m, s in zip(mean, given, strict=True)]
    high = [m + s for m, s in zip(mean, given, strict=True)]
    return [band(x, low, high, name=name, meta=meta)]


def error_bars(sd: Sequence[float | None]) -> dict[str, Any]:
    """The same as bars, for points that no line should be read between."""
    if all(value is None for value in sd):
        return {}
    return {"error_y": {"type": "data", "array": [rounded(value or 0.0) for value in sd], "thickness": 1, "width": 3}}


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
    """A figure of one panel (more by `layout`); plotly refuses what it does not know."""
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
    made = {key: value for key, value in checked["layout"].items() if key != "template"}
    return Figure(id=id, title=title, caption=caption, data=checked["data"], layout=made)
