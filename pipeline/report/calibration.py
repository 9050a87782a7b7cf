"""How well the score works as a probability: Table 6 and its figures."""

from __future__ import annotations

import itertools
from collections import defaultdict

from pipeline.report.blocks import Block, Cell, Column, Figure, Row, Section, Table, Text
from pipeline.report.content import Content
from pipeline.report.measures import Measures, share_cell
from pipeline.report.numbers import over
from pipeline.report.traces import figure, line, seeds_and_mean, style


def calibration_section(content: Content, measures: Measures) -> Section:
    """The section on calibration: Table 6 and its figures."""
    blocks: list[Block] = [
        Text(
            "The score read as the probability of entailment: pairs with a score around x should be entailments in a share of "
            "x, on the grey line. No objective asks for that; a cosine below 0 is taken as 0."
        ),
        _calibration_table(content, measures),
        *(_calibration(content, measures, name, k) for k, name in enumerate(content.figure_sets)),
    ]
    return Section(id="calibration", title="Calibration", blocks=tuple(blocks))


def _calibration_table(content: Content, measures: Measures) -> Table:
    labels = ("entailment", "neutral", "contradiction")
    rows: list[Row] = []
    for name in content.figure_sets:
        for k, recipe in enumerate(content.recipes):
            seeds = measures.get((k, name), [])
            if not seeds:
                continue
            cells = [
                share_cell((model.seed, model.calibration.equal_mass.expected_error) for model in seeds),
                share_cell((model.seed, model.calibration.brier) for model in seeds),
                share_cell((model.seed, model.calibration.clipped / model.calibration.pairs) for model in seeds),
                *(
                    share_cell((model.seed, c.share) for model in seeds for c in model.called if c.label == label)
                    for label in labels
                ),
            ]
            rows.append(Row(cells=(Cell(text=name), Cell(text=recipe.name), *cells)))
    return Table(
        id="table-6",
        title="Table 6. Calibration, and what is called entailment",
        caption="Percent (Brier score × 100), mean ± standard deviation over seeds. Expected calibration error over ten bins "
        "of equally many pairs. Scores beyond [0, 1] are taken as the nearer end. The last columns: share of the pairs of each "
        "gold label that are called entailment at the chosen threshold.",
        columns=(
            Column(name="set", number=False),
            Column(name="recipe", number=False),
            Column(name="calibration error"),
            Column(name="Brier score"),
            Column(name="scores beyond [0, 1]"),
            *(Column(name=f"{label} called entailment") for label in labels),
        ),
        rows=tuple(rows),
    )


def _calibration(content: Content, measures: Measures, set_name: str, number: int) -> Figure:
    hover = "score %{x:.4f}<br>share of entailment %{y:.4f}"
    look = {"line": {"dash": "dash", "width": 1.5}, "hoverinfo": "skip"}
    traces = [line([0.0, 1.0], [0.0, 1.0], name="calibrated", meta={"colour": "muted"}, hover="<extra></extra>", look=look)]
    for k, recipe in enumerate(content.recipes):
        look = {**style(k), "mode": "lines+markers"}
        seeds = measures.get((k, set_name), [])
        if not seeds:
            continue
        by_seed = {model.seed: model.calibration.equal_width.bins for model in seeds}
        collected: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for score_bin in itertools.chain(*by_seed.values()):
            collected[score_bin.lower].append((score_bin.mean_score, score_bin.entailed))
        # A bin has a mean over seeds only if every seed has pairs in it.
        complete_bins = [bins for _, bins in sorted(collected.items()) if len(bins) == len(seeds)]
        x = [over([score for score, _ in bins])["mean"] for bins in complete_bins]
        shares = [over([entailed for _, entailed in bins]) for bins in complete_bins]
        lines = {
            seed: ([b.mean_score for b in bins], [b.entailed for b in bins], [b.pairs for b in bins])
            for seed, bins in by_seed.items()
        }
        more = "<br>%{customdata} pairs"
        traces += seeds_and_mean(k, recipe.name, lines, x, shares, hover=hover, look=look, more_of_seed=more, bars=True)
    return figure(
        f"calibration-{number}",
        set_name,
        f"Share of entailment among the pairs of {set_name} by their score, in ten bins of equal width; bins without pairs, and "
        "means of bins that not every seed has, are left out.",
        traces,
        x={"title": {"text": "score"}, "range": [-0.02, 1.02]},
        y={"title": {"text": "share of entailment"}, "range": [-0.02, 1.02]},
    )
