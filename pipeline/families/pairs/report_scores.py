"""The figures of the scores of single labelled pairs, the tables that go with them, and the worst pairs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.data.schema import LABELS
from pipeline.families.pairs import analysis
from pipeline.report import page
from pipeline.report.results import Recipe, Results, contents_of, read_scores, read_table
from pipeline.report.tables import SPREAD
from pipeline.utils.errors import UserError

WORST = 5
"""Number of pairs shown for each kind of mistake and set."""
_RECALLS = np.linspace(0, 1, 101).tolist()
# Half the width of a bin, in octaves. The open bins at both ends are drawn this far outside their limit.
_HALF_BIN = 0.25

Point = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Small summaries of the scores of a set by one model."""

    seed: int
    direction: tuple[analysis.DirectionBin, ...]
    log_var: analysis.LogVarByLength | None
    calibration: analysis.Calibration
    similarity: analysis.SimilarityByLabel | None
    called: Mapping[str, analysis.Called]
    """By gold label."""


Measures = Mapping[tuple[str, str], Sequence[Measured]]
"""(recipe, set) → one entry for each seed; recipes without a result are left out."""


def measure(results: Results) -> Measures:
    """Read every table of scores once, and summarise it.

    Raises:
        UserError: a table of scores is missing or damaged.
    """
    sets = results.sets_with("accuracy")
    return {
        (r.name, name): [_measured(results, r, name, seed) for seed in r.per_seed]
        for r in results.recipes
        if r.seeds
        for name in sets
    }


def _measured(results: Results, recipe: Recipe, set_name: str, seed: int) -> Measured:
    path, scores = read_scores(recipe, set_name, seed)
    with contents_of(path):
        called = analysis.confusion(scores, recipe.per_seed[seed][set_name]["threshold"], results.entailment_if)
        by_label = {label.label: label for label in called}
        return Measured(
            seed=seed,
            direction=analysis.direction_by_length_ratio(scores) if LABELS[0] in by_label else (),
            log_var=analysis.log_var_by_length(scores),
            calibration=analysis.calibration(scores),
            similarity=analysis.similarity_by_label(scores),
            called=by_label,
        )


# The points of the figures, which are also written as CSV files: for DVC's plots, for MLflow and for plots of one's own.

COLUMNS = {
    "similarity": ("label", "similarity", "sim_hp", "sim_ph"),
    "direction_by_length": ("log2_length_ratio", "pairs", "sim", "var", "length_only"),
    "variance_by_length": ("tokens", "sentences", "mean_log_var", "sd"),
    "calibration": ("mean_score", "entailed", "pairs"),
}
"""Name of a CSV file → its columns after recipe, set and seed. Shares are in percent; an undefined value is None."""


def series(measures: Measures) -> dict[str, list[Point]]:
    """Name of a CSV file → its rows."""
    rows: dict[str, list[Point]] = {name: [] for name in COLUMNS}
    for (recipe, set_name), models in measures.items():
        for model in models:
            for name, point in _points(model):
                about = {"recipe": recipe, "set": set_name, "seed": f"seed-{model.seed}"}
                rows[name].append(about | dict(zip(COLUMNS[name], point, strict=True)))
    return rows


def _points(model: Measured) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for label in model.similarity.labels if model.similarity else ():
        for k, counts in enumerate(zip(label.sim_hp, label.sim_ph, strict=True)):
            yield "similarity", (label.label, (k + 0.5) / len(label.sim_hp), *(100 * n / label.pairs for n in counts))
    for part in model.direction:
        shares = (None if share is None else 100 * share for share in (part.sim, part.var, part.length_only))
        yield "direction_by_length", (_octaves(part), part.pairs, *shares)
    for part in model.log_var.by_tokens if model.log_var else ():
        yield "variance_by_length", (part.tokens, part.sentences, part.mean, part.sd)
    for part in model.calibration.equal_width.bins:
        yield "calibration", (part.mean_score, 100 * part.entailed, part.pairs)


def _octaves(part: analysis.DirectionBin) -> float:
    """The middle of a bin of the ratio premise tokens / hypothesis tokens, as a logarithm to base 2."""
    if part.lower == 0:
        return math.log2(part.upper or 1.0) - _HALF_BIN
    if part.upper is None:
        return math.log2(part.lower) + _HALF_BIN
    return round((math.log2(part.lower) + math.log2(part.upper)) / 2, 9)


# Figures.


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of the points of a CSV file on one set."""

    series: str
    x: str
    y: str
    """Columns of the file."""
    x_axis: Mapping[str, Any]
    y_title: str
    lines: str = "recipe"
    """Column that names a line; with another one than "recipe", the lines are those of the main recipe."""
    grey: str = ""
    """Column of what ignores meaning."""
    bin: float = 0.0
    """Width of the bins in which the points of seeds are averaged; 0 if the seeds have points at the same x."""


_RATIO = {"title": "premise tokens / hypothesis tokens", "tickvals": [-2, -1, 0, 1, 2], "ticktext": ["¼", "½", "1", "2", "4"]}
_FIGURES: Mapping[str, tuple[str, str, Sequence[Plot]]] = {
    "similarity": (
        "Similarity by gold label",
        "How the asymmetric similarity of the main recipe separates entailment from the rest and from its own reverse: by "
        "sim(h‖p), the score of “premise entails hypothesis”, and by sim(p‖h), the score of the reverse.",
        [
            Plot("similarity", "similarity", "sim_hp", {"title": "sim(h‖p)"}, "% of the label's pairs", lines="label"),
            Plot("similarity", "similarity", "sim_ph", {"title": "sim(p‖h)"}, "% of the label's pairs", lines="label"),
        ],
    ),
    "direction-by-length": (
        "Direction by length ratio",
        "Entailment pairs whose direction is right, by how many times as long the premise is as the hypothesis. A model that has "
        "learned only length follows the grey line: right where the premise is longer, wrong where it is shorter.",
        [
            Plot("direction_by_length", "log2_length_ratio", "sim", _RATIO, "% right by sim", grey="length_only"),
            Plot("direction_by_length", "log2_length_ratio", "var", _RATIO, "% right by var", grey="length_only"),
        ],
    ),
    "variance": (
        "Variance against length",
        f"Does the variance just mean length? The figures leave out lengths of fewer than {analysis.FEW_SENTENCES} sentences.",
        [Plot("variance_by_length", "tokens", "mean_log_var", {"title": "tokens of the sentence"}, "mean Σ log-variance")],
    ),
    "calibration": (
        "Calibration",
        "The score read as the probability of entailment, which no objective asks for: a calibrated model follows the diagonal.",
        [Plot("calibration", "mean_score", "entailed", {"title": "score", "range": [-0.02, 1.02]}, "% entailment", bin=0.1)],
    ),
}


def figure_sections(results: Results, measures: Measures) -> list[page.Section]:
    """The sections on the scores of single pairs; none without labelled pairs."""
    if not measures:
        return []
    rows, sets = series(measures), results.test_sets_with("accuracy")
    text = (
        "Precision and recall of calling the pairs with the highest scores entailment, at equal recall, mean over seeds ± one "
        "standard deviation. The large marker is where the chosen threshold puts the models."
    )
    curves = page.Figures(tuple(_precision_recall(results, measures, name, k) for k, name in enumerate(sets)))
    sections = [page.Section("precision-recall", "Precision and recall", (text, curves))]
    tables = {"variance": _variance_table(measures, sets), "calibration": _calibration_table(measures, sets)}
    for id, (title, text, plots) in _FIGURES.items():
        drawn = [_drawn(results, rows, plot, name, f"{id}-{k}-{plot.y}") for k, name in enumerate(sets) for plot in plots]
        if figures := tuple(one for one in drawn if one is not None):
            blocks: tuple[page.Block, ...] = (text, page.Figures(figures), *tables.get(id, ()))
            sections.append(page.Section(id, title, blocks))
    return [*sections, *_examples(results)]


def _drawn(results: Results, rows: Mapping[str, Iterable[Point]], plot: Plot, set_name: str, id: str) -> page.Figure | None:
    """The figure; None if no recipe has points."""
    by_recipe = plot.lines == "recipe"
    # The order of the lines is that of their colours.
    names = [recipe.name for recipe in results.recipes] if by_recipe else [*LABELS, "none"]
    seeds: dict[str, dict[str, dict[float, tuple[float, float]]]] = {name: defaultdict(dict) for name in names}
    grey: dict[float, float] = {}
    for row in rows[plot.series]:
        if row["set"] == set_name and row[plot.y] is not None and (by_recipe or row["recipe"] == results.main.name):
            x = row[plot.x]
            seeds[row[plot.lines]][row["seed"]][x // plot.bin if plot.bin else x] = x, row[plot.y]
            grey |= {x: row[plot.grey]} if plot.grey else {}
    traces = page.mean_lines({name: lines.values() for name, lines in seeds.items()})
    if not traces:
        return None
    traces += [page.grey_line([*grey], [*grey.values()], "length-only")] if grey else []
    traces += [page.grey_line([0, 1], [0, 100], "calibrated")] if plot.bin else []
    return page.figure(id, set_name, "", traces, x=plot.x_axis, y={"title": plot.y_title})


def _precision_recall(results: Results, measures: Measures, set_name: str, number: int) -> page.Figure:
    curves: dict[str, list[dict[float, tuple[float, float]]]] = {recipe.name: [] for recipe in results.recipes}
    for recipe in results.recipes:
        for points in (np.array(sorted(points)) for (name, _), points in recipe.precision_recall.items() if name == set_name):
            at = np.interp(_RECALLS, points[:, 0], points[:, 1]).tolist()
            curves[recipe.name].append({recall: (recall, p) for recall, p in zip(_RECALLS, at, strict=True)})
    traces = page.mean_lines(curves)
    for k, recipe in enumerate(results.recipes):
        # Recall and precision at the threshold. A model that calls no pair entailment has no precision.
        points = [
            (labels[LABELS[0]].share, labels[LABELS[0]].called / total)
            for labels in (model.called for model in measures.get((recipe.name, set_name), ()))
            if LABELS[0] in labels and (total := sum(label.called for label in labels.values()))
        ]
        if points:
            recall, precision = np.mean(points, axis=0).tolist()
            marker = {**page.look(k)["marker"], "size": 13}
            traces.append(page.line([recall], [precision], recipe.name, mode="markers", marker=marker, showlegend=False))
    pairs, entailments = (results.main.mean(set_name, key) or 0 for key in ("pairs", "entailments"))
    traces += [page.grey_line([0, 1], [entailments / pairs] * 2, "chance")] if pairs else []
    x, y = {"title": "recall", "range": [0, 1.01]}, {"title": "precision", "range": [0, 1.02]}
    return page.figure(f"precision-recall-{number}", set_name, "The areas are the PR-AUC of Table 1.", traces, x=x, y=y)


# Tables.

Share = Callable[[Measured], float | None]


def _shares(measures: Measures, sets: Sequence[str], id: str, title: str, columns: Mapping[str, Share]) -> list[page.Table]:
    """A table of shares over seeds, in percent: a row for each set and recipe."""

    def column(value: Share) -> Callable[[tuple[str, str]], object]:
        return lambda key: page.seeds_cell({m.seed: 100 * v for m in measures[key] if (v := value(m)) is not None})

    every = {"set": lambda key: key[1], "recipe": lambda key: key[0], **{name: column(value) for name, value in columns.items()}}
    items = [key for name in sets for key in measures if key[1] == name]
    return page.table(id, title, f"{_CAPTIONS[id]} {SPREAD}", every, items)


_CAPTIONS = {
    "table-5": "Percent, or Spearman's correlation × 100: of the sum of log-variances with tokens, over sentences; of their "
    "differences, premise less hypothesis, over the entailment pairs. Agreement: how often direction by variance agrees with "
    "direction by length, if the lengths differ.",
    "table-6": "Percent (Brier score × 100). Expected calibration error over ten bins of equally many pairs. Scores beyond "
    "[0, 1] are taken as the nearer end. The last columns: pairs of each gold label called entailment at the threshold.",
}


def _variance_table(measures: Measures, sets: Sequence[str]) -> list[page.Table]:
    def of(name: str) -> Share:
        return lambda model: getattr(model.log_var, name, None)

    columns = {
        "Spearman with tokens": of("spearman"),
        "agrees with length-only": of("agreement"),
        "right at equal length": of("var_on_equal"),
        "Spearman of the differences": of("difference_spearman"),
    }
    return _shares(measures, sets, "table-5", "Table 5. The variance and length", columns)


def _calibration_table(measures: Measures, sets: Sequence[str]) -> list[page.Table]:
    def called(label: str) -> Share:
        return lambda model: model.called[label].share if label in model.called else None

    columns: dict[str, Share] = {
        "calibration error": lambda model: model.calibration.equal_mass.expected_error,
        "Brier score": lambda model: model.calibration.brier,
        "scores beyond [0, 1]": lambda model: model.calibration.clipped / model.calibration.pairs,
        **{f"{label} called entailment": called(label) for label in LABELS},
    }
    return _shares(measures, sets, "table-6", "Table 6. The score as a probability", columns)


def _examples(results: Results) -> list[page.Section]:
    """The pairs of the main recipe that go most wrong; none if the parameters hide them."""
    text = (
        "Of the main recipe, by the means over its seeds: not entailed, yet called entailment with the highest scores; entailed, "
        "yet with the lowest scores; entailed with the direction most wrong. A row is that of the set's file in data/prepared, "
        "the first is 1. Scores × 100; direction is the pair's score − that of the pair turned round, negative where it is wrong."
    )
    sets = [] if results.examples == "none" else results.test_sets_with("accuracy")
    tables = [one for k, name in enumerate(sets) for one in _worst(results, name, k)]
    return [page.Section("examples", "Which pairs go most wrong", (text, *tables))] if tables else []


def _worst(results: Results, set_name: str, number: int) -> list[page.Table]:
    recipe = results.main
    scores = [read_scores(recipe, set_name, seed)[1] for seed in recipe.per_seed]
    thresholds = [sets[set_name]["threshold"] for sets in recipe.per_seed.values()]
    with contents_of(recipe.scores / set_name):
        worst = analysis.worst_over_seeds(scores, thresholds, results.entailment_if, WORST)
    kinds = {"called entailment": worst.false_positives, "missed": worst.misses, "wrong direction": worst.wrong_direction or ()}
    sentences: dict[str, list[str]] = {}
    if results.examples == "full":
        path = results.prepared / ("dev/dev.parquet" if set_name == "dev" else f"tests/{set_name}.parquet")
        prepared, scored = read_table(path), scores[0].num_rows
        if prepared.num_rows != scored:
            why = f"{prepared.num_rows} rows, but {scored} were scored"
            raise UserError(f"{path}: {why}; run `dvc repro` so that both are of the same data")
        sentences = {side: prepared[side].to_pylist() for side in ("premise", "hypothesis")}
    columns: dict[str, Callable[[tuple[str, analysis.Pair]], object]] = {
        "what goes wrong": lambda one: one[0],
        "row": lambda one: one[1].row + 1,
        "gold label": lambda one: one[1].label,
        "score": lambda one: 100 * one[1].score,
        "direction": lambda one: page.percent(None if (error := one[1].direction_error) is None else -100 * error, 3),
        "tokens p : h": lambda one: f"{one[1].premise_tokens} : {one[1].hypothesis_tokens}",
        **{side: lambda one, texts=texts: texts[one[1].row] for side, texts in sentences.items()},
    }
    pairs = [(kind, pair) for kind, found in kinds.items() for pair in found]
    return page.table(f"examples-{number}", f"Worst pairs of {set_name}", "", columns, pairs)
