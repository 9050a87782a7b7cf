"""Tables of results, for metrics of any family: one row for each recipe, then the baselines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pipeline.report import page
from pipeline.report.results import Results

SPREAD = "Mean ± standard deviation over seeds (n − 1); one seed has no spread."
QUOTED = "the paper's"
"""The name of a row begins so if its figures come from elsewhere; they are never bold."""
_BOLD = "Bold: the best of its column, baselines included, by the digits shown."

Profile = Mapping[str, Any]
Baselines = Mapping[str, Mapping[tuple[str, str], float | None]]
"""Name of a row → (set, metric) → its value."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of a table of results: a metric on a set."""

    set_name: str
    metric: str
    heading: str
    ranked: bool = True
    """Whether more is better, so that the best is bold."""
    places: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """(set, metric)."""
        return self.set_name, self.metric


@dataclass(frozen=True, slots=True)
class Headline:
    """A metric that the report opens with, on one or more sets."""

    title: str
    measures: Sequence[Measure]
    baselines: Baselines
    """The verdict names those without a value as not compared with."""


def measures_of(sets: Iterable[str], metrics: Mapping[str, str]) -> list[Measure]:
    """Every metric on every set; `metrics` has their headings."""
    return [Measure(name, metric, f"{name}: {heading}") for name in sets for metric, heading in metrics.items()]


def results_table(
    results: Results,
    id: str,
    title: str,
    caption: str,
    measures: Iterable[Measure],
    baselines: Baselines,
) -> list[page.Table]:
    """The table of the measures that some recipe has; empty if there is none."""
    shown = _known(results, measures)
    rows: list[tuple[str, list[dict[int, float]]]] = []
    for recipe in results.recipes:
        alone = [recipe.by_seed(m.set_name, f"similarity.{m.metric}") for m in shown]
        rows.append((recipe.name, [recipe.by_seed(*m.key) for m in shown]))
        # If a relation head scores its pairs.
        rows += [(f"{recipe.name}, by similarity alone", alone)] if any(alone) else []
    trained = len(rows)
    for name, row in baselines.items():
        values = [row.get(m.key) for m in shown]
        rows += [(name, [{} if value is None else {0: value} for value in values])] if any(v is not None for v in values) else []
    best: list[str | None] = []
    for k, m in enumerate(shown):
        values = [page.over([*cells[k].values()])["mean"] for name, cells in rows if cells[k] and not name.startswith(QUOTED)]
        best.append(page.percent(max(values), m.places) if m.ranked and len(values) > 1 else None)
    every: list[page.Row] = []
    for name, cells in rows:
        tops = [None if name.startswith(QUOTED) else top for top in best]
        texts = [page.seeds_cell(values, m.places, top) for values, m, top in zip(cells, shown, tops, strict=True)]
        every.append(page.Row((page.Cell(name), *texts), baseline=len(every) >= trained))
    header = "recipe", *(m.heading for m in shown)
    found = page.Table(id=id, title=title, caption=f"{caption} {SPREAD}", header=header, rows=tuple(every), notes=(_BOLD,))
    return [found] if shown else []


def _known(results: Results, measures: Iterable[Measure]) -> list[Measure]:
    return [m for m in measures if any(recipe.mean(*m.key) is not None for recipe in results.recipes)]


def opening(results: Results, headlines: Sequence[Headline]) -> tuple[list[page.Figure], list[page.Table]]:
    """The headlines of all families: a figure for each, and a table of all."""
    shown = [headline for headline in headlines if _known(results, headline.measures)]
    measures = [replace(m, heading=f"{headline.title}: {m.heading}") for headline in shown for m in headline.measures]
    baselines: dict[str, dict[tuple[str, str], float | None]] = defaultdict(dict)
    for name, row in (item for headline in shown for item in headline.baselines.items() if item[1]):
        baselines[name].update(row)
    height = 110 + 15 * max((len(one.measures) * len([*results.recipes, *one.baselines]) for one in shown), default=0)
    names = sorted(baselines, key=lambda name: name.startswith(QUOTED))
    figures = [_bars(results, headline, f"headline-{k}", names, height) for k, headline in enumerate(shown)]
    return figures, results_table(results, "headlines", "Headlines", "Percent.", measures, baselines)


def _bars(results: Results, headline: Headline, id: str, names: Sequence[str], height: int) -> page.Figure:
    """A group of bars for each set, a bar for each recipe and baseline. `names` has the baselines of all such figures, in which
    each looks the same."""
    measures = _known(results, headline.measures)
    rows: list[tuple[str, page.Trace, Mapping[str, Mapping[str, float]]]] = []
    for k, recipe in enumerate(results.recipes):
        points = {m.heading: page.over([*seeds.values()]) for m in measures if (seeds := recipe.by_seed(*m.key))}
        rows.append((recipe.name, {"color": page.look(k)["marker"]["color"]}, points))
    for k, name in enumerate(names):
        row = headline.baselines.get(name, {})
        known = {m.heading: {"mean": value} for m in measures if (value := row.get(m.key)) is not None}
        rows.append((name, page.baseline_marker(k), known))
    traces: list[page.Trace] = []
    for name, marker, points in rows:
        # Long names of sets have several lines.
        y = [page.escape(heading).replace(", ", ",<br>") for heading in points]
        about = {"name": page.escape(name), "marker": marker, "x": [round(point["mean"], 4) for point in points.values()], "y": y}
        sd = [point.get("sd", 0.0) for point in points.values()]
        about |= {"error_x": {"array": sd, "thickness": 1.5}} if any(sd) else {}
        about |= {"hovertemplate": "%{x:.1f}<extra>%{fullData.name}</extra>", "texttemplate": "\u2003%{x:.1f}"}
        traces += [{"type": "bar", "orientation": "h", "textposition": "outside", "cliponaxis": False, **about}] if points else []
    caption = "Of a recipe, the mean over its seeds; lines at the ends: one standard deviation."
    # Plotly draws the first category, and the first bar of a group, at the bottom.
    x, y = {"ticksuffix": " %", "range": [0, 100]}, {"autorange": "reversed"}
    return page.figure(id, headline.title, caption, traces, x=x, y=y, height=height, bargap=0.12, margin={"r": 48})


def counted(
    id: str, title: str, caption: str, columns: Mapping[str, str | Callable[[Profile], object]], sets: Mapping[str, Profile]
) -> list[page.Table]:
    """A table of counts of stage prepare, a row for each set; empty without sets.

    Args:
        columns: heading → key of the counts, or the value that the counts give.
    """

    def column(value: str | Callable[[Profile], object]) -> Callable[[tuple[str, Profile]], object]:
        return lambda item: item[1].get(value) if isinstance(value, str) else value(item[1])

    named = {heading: column(value) for heading, value in columns.items()}
    return page.table(id, title, caption, {"set": itemgetter(0), **named}, sets.items())


def dropped(counts: Profile) -> str:
    """The rows or documents that were dropped, by reason."""
    return ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in counts["dropped"].items() if n) or "none"


def of_main(results: Results, measures: Iterable[Measure], renamed: Callable[[str], str]) -> dict[tuple[str, str], float | None]:
    """A baseline that the main recipe's results have under another name of the metric."""
    return {m.key: results.main.mean(m.set_name, renamed(m.metric)) for m in measures}


def section(id: str, title: str, tables: Sequence[page.Table], *texts: str) -> list[page.Section]:
    """A section of tables, with texts before them; none without tables."""
    return [page.Section(id, title, (*texts, *tables))] if tables else []
