"""Figures of the two similarities of a pair: by gold label, and how often their order is right by length ratio."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pipeline.evaluation.analysis import DirectionBin
from pipeline.report.blocks import Block, Figure, Section, Text
from pipeline.report.content import Content
from pipeline.report.measures import Measured, Measures
from pipeline.report.numbers import over
from pipeline.report.traces import Trace, figure, line, seeds_and_mean, style

_LABEL_DASHES = ("solid", "dash", "dot", "dashdot")
_MUTED = {"mode": "lines+markers", "line": {"dash": "dash", "width": 1.5}, "marker": {"symbol": "line-ew-open", "size": 9}}


def similarity_section(content: Content, measures: Measures) -> Section:
    """The section on how the two similarities are distributed for each gold label (main recipe only)."""
    blocks: list[Block] = [
        Text(
            "How the asymmetric similarity separates entailment from the rest and from its own reverse: share of the pairs of "
            "each gold label by sim(h‖p), the score of “premise entails hypothesis”, and by sim(p‖h), the score of the "
            "reverse. Pairs of all seeds of the main recipe together."
        )
    ]
    pictures = [_similarity(measures.get((0, name), []), name, k) for k, name in enumerate(content.figure_sets)]
    figures = [picture for picture in pictures if picture is not None]
    blocks += figures or [
        Text("Not defined: the main recipe's objective has no variances, so its similarity is the same both ways.")
    ]
    return Section(id="similarity", title="Similarity by gold label", blocks=tuple(blocks))


def _similarity(seeds: Sequence[Measured], set_name: str, number: int) -> Figure | None:
    similarities = [entry.similarity for entry in seeds if entry.similarity is not None]
    if not similarities:
        return None
    edges = similarities[0].edges
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    traces: list[Trace] = []
    for k, histogram in enumerate(similarities[0].labels):
        label_histograms = [label for entry in similarities for label in entry.labels if label.label == histogram.label]
        pairs = sum(label.pairs for label in label_histograms)
        for side, axis in (("sim_hp", ""), ("sim_ph", "2")):
            shares = [
                100 * sum(counts) / pairs for counts in zip(*(getattr(label, side) for label in label_histograms), strict=True)
            ]
            traces.append(
                line(
                    middles,
                    shares,
                    name=histogram.label,
                    meta={"colour": f"s{k}"},
                    hover="around %{x:.3f}: %{y:.4f} % of the label's pairs<extra></extra>",
                    look={"line": {"shape": "hvh", "width": 2, "dash": _LABEL_DASHES[k]}},
                    showlegend=not axis,
                    yaxis=f"y{axis}",
                )
            )
    return figure(
        f"similarity-{number}",
        set_name,
        f"Share of the pairs of each gold label on {set_name}: above by sim(h‖p), below by sim(p‖h).",
        traces,
        x={"title": {"text": "similarity"}, "range": [0, 1], "anchor": "y2"},
        y={"title": {"text": "% by sim(h‖p)"}, "domain": [0.55, 1], "rangemode": "tozero"},
        yaxis2={"title": {"text": "% by sim(p‖h)"}, "domain": [0, 0.45], "rangemode": "tozero", "automargin": True},
        height=520,
    )


def direction_section(content: Content, measures: Measures) -> Section:
    """The section on direction by length ratio."""
    blocks: list[Block] = [
        Text(
            "Of the entailment pairs, the percentage whose direction is right, by how many times as long the premise is as the "
            "hypothesis (in tokens, the two that mark begin and end counted). A model that has learned only length follows the "
            "grey line: right where the premise is longer, wrong where it is shorter. Mean over seeds with ± one standard "
            "deviation; point at a bin for its number of pairs."
        )
    ]
    pictures = [_direction(content, measures, name, k) for k, name in enumerate(content.figure_sets)]
    blocks += [picture for picture in pictures if picture is not None]
    return Section(id="direction-by-length", title="Direction by length ratio", blocks=tuple(blocks))


def _ratio(bin: DirectionBin) -> str:
    if bin.lower == bin.upper:
        return "equal"
    if bin.upper is None:
        return f"> {bin.lower:.2g}"
    return f"< {bin.upper:.2g}" if bin.lower == 0 else f"{bin.lower:.2g}–{bin.upper:.2g}"


def _direction(content: Content, measures: Measures, set_name: str, number: int) -> Figure | None:
    traces: list[Trace] = []
    hover = "premise %{x} times as long: %{y:.4f} % right<br>%{customdata} pairs"
    first = next((seeds[0].direction for (_, name), seeds in measures.items() if name == set_name and seeds), ())
    if not first:
        return None
    ratios, pairs = [_ratio(length_bin) for length_bin in first], [length_bin.pairs for length_bin in first]
    for by, axis in (("sim", ""), ("var", "2")):
        more = {"customdata": pairs, "yaxis": f"y{axis}"}
        baseline = [100 * length_bin.length_only for length_bin in first]
        traces.append(
            line(
                ratios,
                baseline,
                name="length-only",
                meta={"colour": "muted"},
                hover=f"{hover}<extra></extra>",
                look=_MUTED,
                showlegend=not axis,
                **more,
            )
        )
        for k, recipe in enumerate(content.recipes):
            seeds = measures.get((k, set_name), [])
            values = [[getattr(length_bin, by) for length_bin in seed.direction] for seed in seeds]
            if not recipe.uses_variance or not values:
                continue
            look = {**style(k), "mode": "lines+markers"}
            shares = [[100 * v for v in row] for row in values]
            lines = {seed.seed: (ratios, row, pairs) for seed, row in zip(seeds, shares, strict=True)}
            means = [over(column) for column in zip(*shares, strict=True)]
            traces += seeds_and_mean(
                k, recipe.name, lines, ratios, means, hover=hover, look=look, bars=True, showlegend=not axis, **more
            )
    return figure(
        f"direction-{number}",
        set_name,
        f"Entailment pairs of {set_name} with the direction right, by length of the premise over that of the hypothesis: above "
        "by sim, below by var.",
        traces,
        x={"title": {"text": "premise tokens / hypothesis tokens"}, "type": "category", "anchor": "y2"},
        y={"title": {"text": "% right by sim"}, "domain": [0.54, 1], "range": [-4, 104]},
        yaxis2={"title": {"text": "% right by var"}, "domain": [0, 0.46], "range": [-4, 104], "automargin": True},
        height=560,
    )
