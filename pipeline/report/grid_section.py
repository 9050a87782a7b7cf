"""Table 3: the grids of learning rate × batch size, as tables and heat maps."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report import paper
from pipeline.report.blocks import Block, Cell, Column, Details, Figure, Row, Section, Table, Text, plain_table
from pipeline.report.content import Content
from pipeline.report.numbers import NONE, count, mean_sd, over, percent, rate
from pipeline.report.recipe import Recipe, TrialRow
from pipeline.report.traces import figure, rounded

Points = Mapping[tuple[float, int], list[TrialRow]]
"""(learning rate, batch size) → its trials, one for each seed."""


def grid_section(content: Content) -> Section:
    """The section on the grids: a table and a heat map for each recipe with more than one point, and a list of all trials."""
    blocks: list[Block] = []
    gridded = [recipe for recipe in content.recipes if len(_points(recipe)) > 1]
    for k, recipe in enumerate(gridded):
        letter = "" if len(gridded) == 1 else chr(ord("a") + k) if k < 26 else f"-{k + 1}"
        blocks += [_table(recipe, letter), _heat_map(recipe, k)]
    if not gridded:
        blocks.append(Text("Every grid had one point: nothing was searched."))
    if "snli_test" in content.nli_sets:
        blocks.append(paper.grid_table())
    blocks.append(Details("Every trial", (_trials(content),)))
    return Section(id="grid", title="Learning rate and batch size", blocks=tuple(blocks))


def _points(recipe: Recipe) -> Points:
    """The trials of the grid, by point. Trials with other seeds than the choice used were run after it and are left out."""
    points: dict[tuple[float, int], list[TrialRow]] = {}
    for row in recipe.trials:
        if recipe.choice is None or row.seed in recipe.choice.seeds:
            points.setdefault((row.learning_rate, row.batch_size), []).append(row)
    return points


def _axes(points: Points) -> tuple[list[float], list[int]]:
    return sorted({rate for rate, _ in points}), sorted({size for _, size in points})


def _complete(rows: list[TrialRow] | None) -> list[float] | None:
    """The scores of a point if all its seeds finished, else None: only a complete point can be chosen."""
    if not rows or any(row.status != "finished" for row in rows):
        return None
    return [row.best_dev_score for row in rows if row.best_dev_score is not None]


def _table(recipe: Recipe, letter: str) -> Table:
    points = _points(recipe)
    rates, sizes = _axes(points)
    chosen = (recipe.choice.learning_rate, recipe.choice.batch_size) if recipe.choice else None

    def cell(at: tuple[float, int]) -> Cell:
        rows, scores = points.get(at), _complete(points.get(at))
        if scores:
            detail = ", ".join(
                f"seed {r.seed}: {percent(r.best_dev_score, 4)}" for r in rows or () if r.best_dev_score is not None
            )
            return Cell(text=mean_sd(over(scores), 2), best=at == chosen, detail=detail)
        if not rows:
            return Cell(text=NONE)
        states = sorted({row.status for row in rows})
        return Cell(text=", ".join(f"{sum(row.status == state for row in rows)} {state}" for state in states))

    return Table(
        id=f"table-3{letter}",
        title=f"Table 3{letter}. Grid of {recipe.name}",
        caption=f"Best {recipe.score_label} in percent by peak learning rate (rows) and batch size (columns), mean ± standard "
        f"deviation over seeds ({_seeds(points)} a point). A point with a seed that failed or was stopped cannot be chosen.",
        columns=(Column(name="learning rate"), *(Column(name=f"batch {size}") for size in sizes)),
        rows=tuple(Row(cells=(Cell(text=rate(r)), *(cell((r, size)) for size in sizes))) for r in rates),
        notes=("Bold: the chosen point, which has the highest mean.",),
    )


def _seeds(points: Points) -> str:
    numbers = sorted({len(rows) for rows in points.values()})
    return "–".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))


def _heat_map(recipe: Recipe, k: int) -> Figure:
    points = _points(recipe)
    rates, sizes = _axes(points)
    means = [[over(scores)["mean"] if (scores := _complete(points.get((r, s)))) else None for s in sizes] for r in rates]
    shown = [[mean_sd(over(scores), 2) if (scores := _complete(points.get((r, s)))) else "" for s in sizes] for r in rates]
    trace = {
        "type": "heatmap",
        "x": [str(size) for size in sizes],
        "y": [rate(r) for r in rates],
        "z": [[None if value is None else rounded(value) for value in row] for row in means],
        "text": shown,
        "texttemplate": "%{text}",
        "colorscale": "Cividis",
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"title": {"text": "score"}, "thickness": 12},
        "hovertemplate": f"learning rate %{{y}}<br>batch %{{x}}<br>{recipe.score_label} %{{z:.4f}}<extra></extra>",
        "meta": {},
    }
    return figure(
        f"heat-map-{k}",
        f"Grid of {recipe.name}",
        "The same numbers as a heat map; brighter is better, an empty field has no complete result.",
        [trace],
        x={"title": {"text": "batch size"}, "type": "category"},
        y={"title": {"text": "learning rate"}, "type": "category"},
    )


def _trials(content: Content) -> Table:
    rows = [
        [
            recipe.name,
            rate(row.learning_rate),
            count(row.batch_size),
            str(row.seed),
            row.status,
            percent(row.best_dev_score, 2),
            f"{row.best_step}/{row.total_steps}" if row.best_step else NONE,
            row.trial[:12],
            row.failure or NONE,
        ]
        for recipe in content.recipes
        for row in recipe.trials
    ]
    header = ["recipe", "learning rate", "batch", "seed", "status", "best development score", "at step", "trial", "reason"]
    return plain_table("trials", "Trials", "Every trial of the grids, and the final seeds of the variants.", header, rows)
