"""The page: what it consists of, how it writes numbers and draws figures, and its two forms, HTML and Markdown.

Every string of a page is plain text, which the two forms escape. The HTML file is self-contained: styles, figures and plotly.js
are inside, and nothing is fetched.
"""

from __future__ import annotations

import html
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import plotly.graph_objects as go  # pyright: ignore[reportMissingTypeStubs]
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from markupsafe import escape as escape_html
from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs]

NONE = "–"
"""Shown where a number is missing or not defined."""

COLOURS = ("#0072b2", "#c44e00", "#007f5c", "#a33b7d", "#806000", "#5a4fcf", "#2f2f2f", "#5d8090")
_BASELINES = ("#a9adb3", "/"), ("#c9a227", "x"), ("#8c6bb1", "."), ("#7fb3a6", "|"), ("#b98b73", "-"), ("#d98ca6", "\\")
"""Colours and patterns; the colours are paler than those of recipes."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "hexagon")
_MOST_POINTS = 200
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    # Named one by one: plotly's own choice has a button that uploads the figure's data.
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}
_NUMERIC = re.compile(r"(?=\D*\d)[-+\d.,:/%()\[\]±×·–\s]*|–|")
_SPECIAL = re.compile(r"([\\`*\[\]|~])|(?<!\w)(_)|(_)(?!\w)")

T = TypeVar("T")
Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    best: bool = False
    """Whether this is the best value of its column."""
    detail: str = ""
    """Shown when the reader points at the cell: the value for each seed."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row; the first cell names the row."""

    cells: tuple[Cell, ...]
    baseline: bool = False
    """Whether the row is not of a trained recipe, but of what recipes are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a caption above it and notes below."""

    id: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    folded: bool = False
    """Whether the reader has to open it. The Markdown page leaves it out."""

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds only numbers, which are aligned to the right."""
        return [i > 0 and all(_NUMERIC.fullmatch(row.cells[i].text) for row in self.rows) for i in range(len(self.header))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure. The Markdown page leaves it out; its numbers are in the tables, or in the CSV files of curves/."""

    id: str
    title: str
    caption: str
    plot: go.Figure

    @property
    def html(self) -> Markup:
        """The figure as plotly writes it, which needs plotly.js."""
        return Markup(
            self.plot.to_html(
                full_html=False,
                include_plotlyjs=False,
                config=_CONFIG,
                div_id=f"{self.id}-plot",
                default_height=f"{self.plot.layout.height}px",  # pyright: ignore[reportAttributeAccessIssue]
            )
        )


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that a reader must not overlook, each with the same word before it, such as "Warning". "Verdict" opens the page."""

    word: str
    lines: tuple[str, ...]


Block = str | Lines | Table | tuple[Table, ...] | tuple[Figure, ...]
"""A string is a paragraph. Those of a tuple are side by side, or one above the other where the page is narrow."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks."""

    id: str
    title: str
    blocks: tuple[Block, ...]


def table(
    id: str, title: str, caption: str, columns: Mapping[str, Callable[[T], object]], items: Iterable[T], *, folded: bool = False
) -> list[Table]:
    """A table with a row for each item; empty without items.

    Args:
        columns: heading → the value of an item: a cell, a text, a whole number, a share in percent, or None.
    """
    rows = tuple(Row(tuple(_cell(value(item)) for value in columns.values())) for item in items)
    return [Table(id=id, title=title, caption=caption, header=tuple(columns), rows=rows, folded=folded)] if rows else []


def _cell(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, float) or value is None:
        return Cell(percent(value))
    return Cell(f"{value:,}" if isinstance(value, int) else str(value))


# Numbers. Both forms of the page use only these functions, in every table.


def percent(value: float | None, places: int = 1) -> str:
    """A number of the evaluation, in percent (or × 100).

    It is rounded to the four places of DVC's metrics first, so rounding the output of `dvc metrics show` gives the same digits.
    """
    # Adding 0 turns −0.0 into 0.0.
    return NONE if value is None else f"{round(round(value, 4), places) + 0.0:.{places}f}"


def share(value: float) -> str:
    """A share as text reads it; number and sign stay on one line."""
    return f"{percent(value)}\u00a0%"


def over(values: Sequence[float]) -> dict[str, float]:
    """Mean and sd (with n − 1; absent for one value)."""
    return {"mean": statistics.fmean(values)} | ({"sd": statistics.stdev(values)} if len(values) > 1 else {})


def seeds_cell(by_seed: Mapping[int, float], places: int = 1, best: str | None = None) -> Cell:
    """Mean ± sd over seeds, or the value of the only one; the value of each as detail; bold if the mean is written as `best`."""
    if not by_seed:
        return Cell(NONE)
    summary = over([*by_seed.values()])
    mean = percent(summary["mean"], places)
    text = f"{mean} ± {percent(summary['sd'], places)}" if "sd" in summary else mean
    detail = ", ".join(f"seed {seed}: {percent(value, 4)}" for seed, value in by_seed.items() if len(by_seed) > 1)
    return Cell(text, mean == best, detail)


# Figures.


def look(number: int) -> dict[str, Any]:
    """The colour, dash and marker of a recipe or set, by its number; they differ without colour, too."""
    colour = COLOURS[number % len(COLOURS)]
    return {
        "line": {"color": colour, "dash": _DASHES[number % len(_DASHES)], "width": 2},
        "marker": {"color": colour, "symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 7},
    }


def baseline_marker(number: int) -> dict[str, Any]:
    """The colour and pattern of a baseline's bars, by its number; they differ without colour, too."""
    colour, shape = _BASELINES[number % len(_BASELINES)]
    return {"color": colour, "pattern": {"shape": shape, "fgcolor": "#fff", "fillmode": "overlay", "size": 6}}


def escape(name: str) -> str:
    """A name escaped for plotly, which reads some tags as formatting."""
    return html.escape(name, quote=False)


def line(x: Sequence[float], y: Sequence[float], name: str, **more: Any) -> Trace:
    """A line."""
    shown = escape(name)
    # Four places are more than a figure can show, and keep the page small.
    given = {"x": [round(v, 4) for v in x], "y": [round(v, 4) for v in y], "name": shown, "legendgroup": shown}
    return {"type": "scatter", "mode": "lines", "hovertemplate": "%{x}: %{y}<extra>%{fullData.name}</extra>", **given, **more}


def grey_line(x: Sequence[float], y: Sequence[float], name: str) -> Trace:
    """A line of what recipes are compared with."""
    return line(x, y, name, line={"color": "#6a6f76", "dash": "dash", "width": 1.5})


def mean_lines(curves: Mapping[str, Iterable[Mapping[Any, tuple[float, float]]]]) -> list[Trace]:
    """A line for each name: the mean over its seeds, at the points that every seed has, with a band of ± one sd.

    Args:
        curves: name of a line → for each seed, key of a point → (x, y). Points of one key are averaged over the seeds.
    """
    traces: list[Trace] = []
    for k, (name, every) in enumerate(curves.items()):
        seeds = [seed for seed in every if seed]
        common = [key for key in (seeds[0] if seeds else ()) if all(key in seed for seed in seeds)]
        # Counted from the end, so that a thinned curve ends where it did.
        kept = common[:: -(len(common) // _MOST_POINTS + 1)][::-1]
        if not kept:
            continue
        x = [statistics.fmean(seed[key][0] for seed in seeds) for key in kept]
        means = [over([seed[key][1] for seed in seeds]) for key in kept]
        y, sd = [point["mean"] for point in means], [point.get("sd", 0.0) for point in means]
        if any(sd):
            edge = [*map(operator.add, y, sd), *reversed([*map(operator.sub, y, sd)])]
            shade = {"fill": "toself", "fillcolor": look(k)["marker"]["color"], "opacity": 0.15, "line": {"width": 0}}
            traces.append(line([*x, *reversed(x)], edge, name, **shade, showlegend=False, hoverinfo="skip", hovertemplate=None))
        traces.append(line(x, y, name, **look(k), mode="lines+markers" if len(x) <= 20 else "lines"))
    return traces


_AXIS = {"automargin": True, "zeroline": False, "gridcolor": "#e3e6ea", "linecolor": "#d5d9de"}
_TEMPLATE = {
    "layout": {
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        # The buttons have their place above the plot.
        "margin": {"l": 56, "r": 8, "t": 28, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1b1e22"},
        "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0},
        "hovermode": "closest",
        # A finger that moves over a figure wants to scroll the page; the buttons of the figure zoom.
        "dragmode": False,
    }
}


def figure(
    id: str, title: str, caption: str, traces: Sequence[Trace], *, x: Mapping[str, Any], y: Mapping[str, Any], **layout: Any
) -> Figure:
    """A figure with these axes. Plotly checks it and refuses unknown keys."""
    plot = go.Figure(list(traces), {"template": _TEMPLATE, "height": 380, "xaxis": x, "yaxis": y, **layout})
    return Figure(id=id, title=title, caption=caption, plot=plot)


# The two forms.


def as_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as HTML. The same page always gives the same bytes."""
    return _rendered("page.html", title=title, lead=lead, sections=sections, plotly=Markup(get_plotlyjs()))


def as_markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page's warnings and tables as Markdown, for pull requests: no figures, and nothing that is folded."""
    plain = [(section.title, _without_figures(section.blocks)) for section in sections]
    # A paragraph alone introduces figures.
    shown = [(name, blocks) for name, blocks in plain if not all(isinstance(block, str) for block in blocks)]
    return _rendered("page.md.txt", title=title, lead=lead, sections=shown)


def _without_figures(blocks: Iterable[Block]) -> list[str | Lines | Table]:
    each = [one for block in blocks for one in (block if isinstance(block, tuple) else (block,))]
    lines = [one for one in each if not isinstance(one, Figure) and not (isinstance(one, Table) and one.folded)]
    return [one for one in lines if not isinstance(one, Lines) or one.lines]


def _rendered(template: str, **shown: Any) -> str:
    folder = FileSystemLoader(Path(__file__).parent)
    # Only HTML is escaped by jinja.
    escaped = select_autoescape()
    templates = Environment(loader=folder, autoescape=escaped, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Long names may break after an underscore or a plus, so that they fit into narrow columns.
    templates.filters["breakable"] = lambda text: Markup(re.sub(r"([_+])", r"\1<wbr>", str(escape_html(text))))
    templates.filters["plain"] = _plain
    templates.globals["kind"] = lambda block: type(block).__name__  # pyright: ignore[reportArgumentType]
    return templates.get_template(template).render(**shown)


def _plain(text: str) -> str:
    """Text escaped so that Markdown shows it unchanged, on one line."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", plain)
