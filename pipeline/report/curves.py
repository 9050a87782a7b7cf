"""Figures of curves: precision against recall, and learning curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from pipeline.report.blocks import Block, Figure, Section, Text
from pipeline.report.content import Content
from pipeline.report.measures import Measured, Measures
from pipeline.report.numbers import over
from pipeline.report.recipe import Recipe, Step
from pipeline.report.traces import Trace, figure, line, of_mean, of_seed, seeds_and_mean, style

T = TypeVar("T")

_RECALLS = np.linspace(0, 1, 101)
_MOST_POINTS = 200
_MUTED = {"line": {"dash": "dash", "width": 1.5}}


def precision_recall_section(content: Content, measures: Measures) -> Section:
    """The section on precision and recall, with a figure for each set."""
    blocks: list[Block] = [
        Text(
            "Precision and recall of calling the pairs with the highest scores entailment. The mean over seeds is that of the "
            "precisions at equal recall, with ± one standard deviation; the large marker is where the chosen threshold puts "
            "each model. The dashed grey line is the share of entailments, which is what chance reaches."
        )
    ]
    blocks += [_precision_recall(content, measures, name, k) for k, name in enumerate(content.nli_sets)]
    return Section(id="precision-recall", title="Precision and recall", blocks=tuple(blocks))


def _precision_recall(content: Content, measures: Measures, set_name: str, number: int) -> Figure:
    traces: list[Trace] = []
    for k, recipe in enumerate(content.recipes):
        curves = {seed: points for (name, seed), points in recipe.precision_recall.items() if name == set_name}
        if not curves:
            continue
        seeds = {
            seed: ([p[0] for p in points], [p[1] for p in points], [round(p[2], 4) for p in points])
            for seed, points in curves.items()
        }
        traces += seeds_and_mean(
            k,
            recipe.name,
            seeds,
            _RECALLS.tolist(),
            _mean_precision(list(curves.values())),
            hover="recall %{x:.4f}<br>precision %{y:.4f}",
            look={"line": style(k)["line"]},
            more_of_seed="<br>threshold %{customdata:.4f}",
        )
        traces += _operating_points(k, recipe, measures.get((k, set_name), []))
    chance = content.main.numbers(set_name, "entailments"), content.main.numbers(set_name, "pairs")
    if chance[0] and chance[1]:
        share = chance[0]["mean"] / chance[1]["mean"]
        traces.append(
            line(
                [0.0, 1.0], [share, share], name="chance", meta={"colour": "muted"}, hover="%{y:.4f}<extra></extra>", look=_MUTED
            )
        )
    return figure(
        f"precision-recall-{number}",
        set_name,
        f"Precision against recall on {set_name}, a curve for each recipe; the areas are the PR-AUC of Table 1.",
        traces,
        x={"title": {"text": "recall"}, "range": [0, 1.01]},
        y={"title": {"text": "precision"}, "range": [0, 1.02]},
    )


def _mean_precision(curves: Sequence[Sequence[tuple[float, float, float]]]) -> list[dict[str, float]]:
    """Mean and sd of the precision over seeds, at fixed recalls; each curve is interpolated between its points."""
    lines: list[list[float]] = []
    for points in curves:
        rising = sorted((recall, precision) for recall, precision, _ in points)
        lines.append(np.interp(_RECALLS, [r for r, _ in rising], [p for _, p in rising]).tolist())
    return [over(values) for values in zip(*lines, strict=True)]


def _operating_points(k: int, recipe: Recipe, seeds: Sequence[Measured]) -> list[Trace]:
    marker = {"mode": "markers", "marker": {**style(k)["marker"], "size": 13, "line": {"width": 1.5}}, "showlegend": False}
    points = [
        (model.seed, model.point.recall, model.point.precision, model.point.threshold)
        for model in seeds
        if model.point.precision is not None
    ]
    if not points:
        return []
    hover = "at the threshold %{customdata:.4f}<br>recall %{x:.4f}<br>precision %{y:.4f}"
    shown = [
        (of_seed(k, seed), f"seed {seed}", recall, precision or 0.0, threshold) for seed, recall, precision, threshold in points
    ]
    means = [over([row[i] or 0.0 for row in points])["mean"] for i in (1, 2, 3)]
    shown.append((of_mean(k), "mean", means[0], means[1], means[2]))
    return [
        line(
            [x],
            [y],
            name=recipe.name,
            meta=meta,
            hover=f"{hover}<extra>{who}</extra>",
            look=marker,
            customdata=[round(cutoff, 4)],
        )
        for meta, who, x, y, cutoff in shown
    ]


def learning_section(content: Content) -> Section:
    """The section on learning: development score and training loss over the steps."""
    blocks: list[Block] = [
        Text(
            "Of the final models; the mean over seeds with ± one standard deviation. The best step's weights are kept, not the "
            "last."
        )
    ]
    for id, title, value in (
        ("learning-dev", _score_title(content), lambda step: step.dev_score),
        ("learning-loss", "Training loss", lambda step: step.loss),
    ):
        picture = _learning(content, id, title, value)
        blocks.append(picture if picture.data else Text(f"{title}: no recipe has a curve of it."))
    return Section(id="learning", title="Learning curves", blocks=tuple(blocks))


def _score_title(content: Content) -> str:
    """What the recipes' development scores are called; variants with another objective may have another score."""
    labels = {recipe.score_label for recipe in content.recipes}
    label = labels.pop() if len(labels) == 1 else "development score"
    return label[0].upper() + label[1:]


def _learning(content: Content, id: str, title: str, value: Callable[[Step], float | None]) -> Figure:
    traces: list[Trace] = []
    hover = "step %{x}<br>" + title.lower().replace("pr-auc", "PR-AUC") + " %{y:.4f}"
    for k, recipe in enumerate(content.recipes):
        curves = {
            seed: {step.step: number for step in steps if (number := value(step)) is not None}
            for seed, steps in recipe.learning.items()
        }
        curves = {seed: points for seed, points in curves.items() if points}
        if not curves:
            continue
        look = {**style(k), "mode": "lines+markers" if max(map(len, curves.values())) <= 30 else "lines"}
        thin = {seed: _thinned(points) for seed, points in curves.items()}
        seeds = {seed: (list(points), list(points.values()), ()) for seed, points in thin.items()}
        common = [step for step in next(iter(curves.values())) if all(step in points for points in curves.values())]
        means = _thinned({step: over([points[step] for points in curves.values()]) for step in common})
        traces += seeds_and_mean(k, recipe.name, seeds, list(means), list(means.values()), hover=hover, look=look)
    caption = f"{title} over the optimizer steps, a curve for each recipe."
    return figure(id, title, caption, traces, x={"title": {"text": "step"}, "rangemode": "tozero"}, y={"title": {"text": title}})


def _thinned(points: Mapping[int, T]) -> dict[int, T]:
    steps = list(points)
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_POINTS)).astype(int)) if steps else []
    return {steps[i]: points[steps[i]] for i in keep}
