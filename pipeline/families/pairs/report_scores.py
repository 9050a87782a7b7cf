"""The figures of the scores of single labelled pairs, the tables that go with them, and the worst pairs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.data.decision import called
from pipeline.data.schema import LABELS
from pipeline.families.pairs.analysis import FEW_SENTENCES, MISTAKES, SERIES, Analysis, Pair, analyse, by_label, worst_pairs
from pipeline.report import page
from pipeline.report.results import Results, contents_of, read_scores, read_table
from pipeline.report.tables import SPREAD
from pipeline.utils.errors import UserError

WORST = 5
"""Number of pairs shown for each kind of mistake and set."""
_RECALLS = np.linspace(0, 1, 101).tolist()

Point = dict[str, Any]
Measures = Mapping[tuple[str, str], Mapping[int, Analysis]]
"""(recipe, set) → seed → its scores in brief; recipes without a result are left out."""


def measure(results: Results) -> Measures:
    """Read every table of scores once, and summarise it.

    Raises:
        UserError: a table of scores is missing or damaged.
    """
    measures: dict[tuple[str, str], dict[int, Analysis]] = defaultdict(dict)
    for recipe in results.recipes:
        for set_name in results.sets_with("accuracy") if recipe.seeds else ():
            for seed, sets in recipe.per_seed.items():
                path, scores = read_scores(recipe, set_name, seed)
                with contents_of(path):
                    found = analyse(scores, sets[set_name]["threshold"], results.entailment_if)
                measures[recipe.name, set_name][seed] = found
    return measures


def series(measures: Measures) -> dict[str, list[Point]]:
    """Name of a curve → its points, which are also written as CSV files for DVC's plots and for MLflow."""
    return {
        name: [
            {"recipe": recipe, "set": set_name, "seed": f"seed-{seed}", **dict(zip(columns, point, strict=True))}
            for (recipe, set_name), models in measures.items()
            for seed, model in models.items()
            for point in model.points[name]
        ]
        for name, columns in SERIES.items()
    }


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
        f"Does the variance just mean length? The figures leave out lengths of fewer than {FEW_SENTENCES} sentences.",
        [Plot("variance_by_length", "tokens", "mean_log_var", {"title": "tokens of the sentence"}, "mean Σ log-variance")],
    ),
    "calibration": (
        "Calibration",
        "The score read as the probability of entailment, which no objective asks for: a calibrated model follows the diagonal.",
        [Plot("calibration", "mean_score", "entailed", {"title": "score", "range": [-0.02, 1.02]}, "% entailment", bin=0.1)],
    ),
}


def figure_sections(results: Results, measures: Measures, rows: Mapping[str, Iterable[Point]]) -> list[page.Section]:
    """The sections on the scores of single pairs; none without labelled pairs. `rows` is their `series`."""
    if not measures:
        return []
    sets = results.test_sets_with("accuracy")
    text = (
        "Precision and recall of calling the pairs with the highest scores entailment, at equal recall, mean over seeds ± one "
        "standard deviation. The large marker is where the chosen threshold puts the models."
    )
    curves = tuple(_precision_recall(results, measures, name, k) for k, name in enumerate(sets))
    sections = [page.Section("precision-recall", "Precision and recall", (text, curves))]
    tables = {id: _shares(measures, sets, *table) for id, table in _TABLES.items()}
    for id, (title, text, plots) in _FIGURES.items():
        drawn = [_drawn(results, rows, plot, name, f"{id}-{k}-{plot.y}") for k, name in enumerate(sets) for plot in plots]
        if figures := tuple(one for one in drawn if one is not None):
            blocks: tuple[page.Block, ...] = (text, figures, *tables.get(id, ()))
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
    # Where no label has pairs, there is nothing to see.
    lowest = min((x for of in seeds.values() for seed in of.values() for x, y in seed.values() if y >= 0.5), default=0)
    x_axis = plot.x_axis if by_recipe else {**plot.x_axis, "range": [lowest - 0.05, 1.01]}
    traces += [page.grey_line([*grey], [*grey.values()], "length-only")] if grey else []
    traces += [page.grey_line([0, 1], [0, 100], "calibrated")] if plot.bin else []
    return page.figure(id, set_name, "", traces, x=x_axis, y={"title": plot.y_title})


def _precision_recall(results: Results, measures: Measures, set_name: str, number: int) -> page.Figure:
    curves: dict[str, list[dict[float, tuple[float, float]]]] = {recipe.name: [] for recipe in results.recipes}
    for recipe in results.recipes:
        rows = sorted((row.seed, row.recall, row.precision) for row in recipe.precision_recall if row.set == set_name)
        for _, of_seed in itertools.groupby(rows, key=itemgetter(0)):
            _, recall, precision = zip(*of_seed, strict=True)
            at = zip(_RECALLS, np.interp(_RECALLS, recall, precision).tolist(), strict=True)
            curves[recipe.name].append({point[0]: point for point in at})
    traces = page.mean_lines(curves)
    for k, recipe in enumerate(results.recipes):
        # A model that calls no pair entailment has no precision.
        every = (model.shares for model in measures.get((recipe.name, set_name), {}).values())
        both = ((shares.get("entailment called entailment"), shares["precision"]) for shares in every)
        points = [(recall, precision) for recall, precision in both if recall is not None and precision is not None]
        if points:
            recall, precision = (np.mean(points, axis=0) / 100).tolist()
            marker = {**page.look(k)["marker"], "size": 13}
            traces.append(page.line([recall], [precision], recipe.name, mode="markers", marker=marker, showlegend=False))
    pairs, entailments = (results.main.mean(set_name, key) or 0 for key in ("pairs", "entailments"))
    traces += [page.grey_line([0, 1], [entailments / pairs] * 2, "always-no")] if pairs else []
    x, y = {"title": "recall", "range": [0, 1.01]}, {"title": "precision", "range": [0, 1.02]}
    return page.figure(f"precision-recall-{number}", set_name, "The areas are the PR-AUC of Table 1.", traces, x=x, y=y)


_TABLES: Mapping[str, tuple[str, str, str, Sequence[str]]] = {
    "variance": (
        "table-5",
        "Table 5. The variance and length",
        "Percent, or Spearman's correlation × 100: of the sum of log-variances with tokens, over sentences; of their "
        "differences, premise less hypothesis, over the entailment pairs. Agreement: how often direction by variance agrees with "
        "direction by length, if the lengths differ.",
        ["Spearman with tokens", "agrees with length-only", "right at equal length", "Spearman of the differences"],
    ),
    "calibration": (
        "table-6",
        "Table 6. The score as a probability",
        "Percent (Brier score × 100). Expected calibration error over ten bins of equally many pairs. Scores beyond "
        "[0, 1] are taken as the nearer end. The last columns: pairs of each gold label called entailment at the threshold.",
        ["calibration error", "Brier score", "scores beyond [0, 1]", *(f"{label} called entailment" for label in LABELS)],
    ),
}
"""Section → id, title, caption and headings of its table."""


def _shares(
    measures: Measures, sets: Sequence[str], id: str, title: str, caption: str, headings: Sequence[str]
) -> list[page.Table]:
    """A table of shares over seeds: a row for each set and recipe."""

    def column(heading: str) -> Callable[[tuple[str, str]], object]:
        return lambda key: page.seeds_cell(
            {seed: share for seed, model in measures[key].items() if (share := model.shares.get(heading)) is not None}
        )

    columns = {"set": lambda key: key[1], "recipe": lambda key: key[0], **{name: column(name) for name in headings}}
    items = [key for name in sets for key in measures if key[1] == name]
    return page.table(id, title, f"{caption} {SPREAD}", columns, items)


def champion(results: Results, seed: int) -> list[page.Block]:
    """What the main recipe's model of a seed calls the pairs of each test set, and its ten worst pairs; none without pairs."""
    sets = results.test_sets_with("accuracy")
    text = (
        "Rows: gold label; columns: what it calls the pairs, with their number and the share of the row; bold: right. Accuracy: "
        "entailment or not, by the threshold."
    )
    blocks = [text, tuple(_confusion(results, seed, name, k) for k, name in enumerate(sets)), *_ten_worst(results, seed, sets)]
    return blocks if sets else []


def _confusion(results: Results, seed: int, set_name: str, number: int) -> page.Table:
    """The pairs of each gold label by what they are called: three labels with a relation head, otherwise entailment or not."""
    path, table = read_scores(results.main, set_name, seed)
    metrics = results.main.per_seed[seed][set_name]
    with contents_of(path):
        names = LABELS if "relation" in table.column_names else (LABELS[0], "not entailment")
        yes = called(table["score"].to_numpy(), metrics["threshold"], results.entailment_if)
        calls = table["relation"].to_numpy() if names is LABELS else np.where(yes, 0, 1)
        labels = by_label(table)

    def cell(gold: str, k: int) -> page.Cell:
        n, pairs = int((calls[labels[gold]] == k).sum()), int(labels[gold].sum())
        right = names[k] == gold or (names[k] not in LABELS and gold != LABELS[0])
        return page.Cell(f"{n:,} ({page.share(100 * n / pairs)})", best=right)

    columns: dict[str, Callable[[str], object]] = {"gold label (pairs)": lambda gold: f"{gold} ({labels[gold].sum():,})"}
    columns |= {name: lambda gold, k=k: cell(gold, k) for k, name in enumerate(names)}
    others = {
        "always-no": 100 - 100 * metrics["entailments"] / metrics["pairs"],
        "hypothesis-only": results.hypothesis_only.get(set_name, {}).get("accuracy"),
    }
    compared = ", ".join(f"{name} {page.share(value)}" for name, value in others.items() if value is not None)
    of_three = f"; three labels: {page.share(metrics['three_way'])}" if "three_way" in metrics else ""
    caption, title = f"{compared}{of_three}.", f"{set_name}: accuracy {page.share(metrics['accuracy'])}"
    return page.table(f"confusion-{number}", title, caption, columns, labels)[0]


def _ten_worst(results: Results, seed: int, sets: Sequence[str]) -> list[page.Block]:
    if results.examples != "full":
        return ["To see its ten worst pairs here, set report.examples: full in params.yaml and run: dvc repro -s report"]
    metrics = results.main.per_seed[seed]
    every = [one for name in sets for one in _worst(results, name, [seed])]
    every.sort(key=lambda one: -abs(one.score - metrics[one.set_name]["threshold"]))
    ten = [one for mistake in MISTAKES[:2] for one in [one for one in every if one.mistake == mistake][:WORST]]
    caption = f"The {WORST} that are called entailment and are not, and the {WORST} missed, furthest from the threshold."
    return [*_worst_table(results, "worst", "Its ten worst pairs", caption, ten)]


def _examples(results: Results) -> list[page.Section]:
    """The pairs of the main recipe that go most wrong; none if the parameters hide them."""
    text = (
        "Of the main recipe, by the means over its seeds: not entailed, yet called entailment with the highest scores; entailed, "
        "yet with the lowest scores; entailed with the direction most wrong. A row is that of the set's file in data/prepared, "
        "the first is 1. Scores × 100; direction is the pair's score − that of the pair turned round, negative where it is wrong."
    )
    sets = [] if results.examples == "none" else results.test_sets_with("accuracy")
    worst = [one for name in sets for one in _worst(results, name, results.main.per_seed)]
    tables = _worst_table(results, "examples-table", "Worst pairs of each set", "", worst)
    return [page.Section("examples", "Which pairs go most wrong", (text, *tables))] if tables else []


def _worst_table(results: Results, id: str, title: str, caption: str, worst: Iterable[Pair]) -> list[page.Table]:
    columns: dict[str, Callable[[Pair], object]] = {"what goes wrong": lambda one: f"{one.label}, {one.mistake}"}
    if results.examples == "full":
        columns |= {"premise": lambda one: one.texts[0], "hypothesis": lambda one: one.texts[1]}
    columns |= {
        "score": lambda one: 100 * one.score,
        "direction": lambda one: page.percent(None if (error := one.direction_error) is None else -100 * error, 3),
        "tokens p : h": lambda one: "{} : {}".format(*one.tokens),
        "set, row": lambda one: f"{one.set_name}, {one.row + 1}",
    }
    return page.table(id, title, caption, columns, worst)


def _worst(results: Results, set_name: str, seeds: Iterable[int]) -> list[Pair]:
    """The worst pairs of the main recipe on a set, by the means over these seeds."""
    recipe = results.main
    scores = [read_scores(recipe, set_name, seed)[1] for seed in seeds]
    thresholds = [recipe.per_seed[seed][set_name]["threshold"] for seed in seeds]
    with contents_of(recipe.scores / set_name):
        pairs = worst_pairs(scores, thresholds, results.entailment_if, WORST)
    pairs = [pair._replace(set_name=set_name) for pair in pairs]
    if results.examples != "full":
        return pairs
    path = results.prepared / ("dev/dev.parquet" if set_name == "dev" else f"tests/{set_name}.parquet")
    prepared, scored = read_table(path), scores[0].num_rows
    if prepared.num_rows != scored:
        why = f"{prepared.num_rows} rows, but {scored} were scored"
        raise UserError(f"{path}: {why}; run `dvc repro` so that both are of the same data")
    sides = prepared["premise"], prepared["hypothesis"]
    return [pair._replace(texts=tuple(side[pair.row].as_py() for side in sides)) for pair in pairs]
