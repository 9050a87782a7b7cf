"""The tables of results: entailment against the rest, direction, graded similarity. One row per recipe, then the baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.report import paper
from pipeline.report.blocks import Cell, Column, Row, Table, slug
from pipeline.report.content import Content
from pipeline.report.numbers import NONE, UNDEFINED, count, each_seed, mean_sd, percent
from pipeline.report.recipe import Recipe

Measure = tuple[str, str]
"""(set, metric) of a column."""

_BOLD = "Bold: the best of its column, baselines included, by the digits shown."
_SPREAD = "Mean ± standard deviation over seeds (n − 1); one seed has no spread."
_BY_SCORE = "score, by the scores of the pair both ways, if a relation head gives them; "
_SUBSETS = {
    "": "all",
    "not_longer_": "premise not longer",
    "one_way_": "one-way",
    "one_way_not_longer_": "one-way, premise not longer",
    "two_way_": "two-way",
    "neutral_": "neutral pairs",
}
ALONE = "by similarity alone"
"""Added to a recipe's name for the row of its similarity, if a relation head scores its pairs."""
_NONE_IS_BEST = ("two_way_", "neutral_")


def nli_table(content: Content) -> Table:
    """Table 1: PR-AUC and accuracy of every recipe on every set, with baselines that do not see the premise."""
    measures = [(name, metric) for name in content.nli_sets for metric in ("pr_auc", "accuracy")]
    shown = {"pr_auc": "PR-AUC", "accuracy": "accuracy"}

    def majority(measure: Measure) -> float | None:
        name, metric = measure
        sizes = {key: content.main.numbers(name, key) for key in ("majority_accuracy", "entailments", "pairs")}
        if any(value is None for value in sizes.values()):
            return None
        means = {key: value["mean"] for key, value in sizes.items() if value is not None}
        return means["majority_accuracy"] if metric == "accuracy" else 100 * means["entailments"] / means["pairs"]

    return _results(
        content,
        id="table-1",
        title="Table 1. Entailment against the rest",
        caption=f"Percent. {_SPREAD} Hypothesis-only is a classifier of the hypothesis's words that never sees the premise. "
        "Majority gives every pair the more frequent class; its PR-AUC is the share of entailments, which is chance.",
        measures=measures,
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={
            "hypothesis-only": lambda m: content.hypothesis_only.get(m[0], {}).get(m[1]),
            "majority, chance": majority,
        },
        remarks=[f"{recipe.name} has no result: {recipe.failure}" for recipe in content.recipes if recipe.failure],
    )


def threshold_table(content: Content) -> Table:
    """Table 1b, in addition to Table 1: average precision, and the thresholds used for accuracy."""
    sets = content.nli_sets
    columns = ["recipe", *(f"{name}: {what}" for name in sets for what in ("average precision", "threshold"))]
    rows = [
        Row(
            cells=(
                Cell(text=recipe.name),
                *(
                    _cell(recipe, (name, metric), places)
                    for name in sets
                    for metric, places in (("average_precision", 1), ("threshold", 3))
                ),
            )
        )
        for recipe in content.recipes
        if recipe.summary
    ]
    pairs = ", ".join(f"{name} {count(_mean(content.main, name, 'pairs'))}" for name in sets)
    return Table(
        id="table-1b",
        title="Table 1b. Average precision and thresholds",
        caption=f"Average precision in percent. A pair is called entailment if its score is {content.entailment_if} the "
        "threshold: that with the highest accuracy on dev, or on the set that evaluate.threshold_on names; never on the test "
        f"set itself. Pairs: {pairs}.",
        columns=_columns(columns),
        rows=tuple(rows),
    )


def directed_table(content: Content) -> Table | None:
    """Table 1c: entailment and its direction in one number; None if no set has entailment pairs that hold one way."""
    sets = [name for name in content.nli_sets if content.main.numbers(name, "directed_pr_auc")]
    if not sets:
        return None
    shown = {
        "directed_pr_auc": "PR-AUC",
        "directed_average_precision": "average precision",
        "direction.neutral_sim": "neutral pairs by sim",
    }
    if any(recipe.numbers(name, "direction.neutral_score") for recipe in content.recipes for name in sets):
        shown["direction.neutral_score"] = "neutral pairs by score"

    def length_only(measure: Measure) -> float | None:
        name, metric = measure
        neutral = metric.startswith("direction.")
        by_length = "direction.neutral_length_only" if neutral else f"{metric}_length_only"
        return _mean_of(content.main, (name, by_length))

    return _results(
        content,
        id="table-1c",
        title="Table 1c. Entailment and its direction at once",
        caption="Percent. Right are the entailment pairs that hold one way; wrong are the neutral and contradiction pairs, and "
        f"every right pair turned round. A symmetric score reaches about half. {_SPREAD} Length-only scores a pair by how many "
        "tokens longer its premise is. Neutral pairs: how often direction says that their premise entails, although it does not; "
        "what is above 50 comes from how premises and hypotheses are written, and none is bold.",
        measures=[(name, metric) for name in sets for metric in shown],
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={"length-only": length_only},
    )


def direction_table(content: Content, set_name: str, part: str) -> Table | None:
    """Table 2, one part for each set: how often the direction of entailment is right; None if the set has no entailment pairs."""
    subsets = [prefix for prefix in _SUBSETS if content.main.numbers(set_name, f"direction.{prefix}pairs")]
    if not subsets:
        return None
    headed = any(recipe.numbers(set_name, "direction.score") for recipe in content.recipes)
    scored = ("score",) if headed else ()
    measures = [(set_name, f"direction.{prefix}{by}") for prefix in subsets for by in (*scored, "sim", "var")]

    def heading(measure: Measure) -> str:
        prefix, by = _split(measure[1])
        return f"{_SUBSETS[prefix]} ({count(_mean(content.main, set_name, f'direction.{prefix}pairs'))}): {by}"

    def length_only(measure: Measure) -> float | None:
        numbers = content.main.numbers(set_name, f"direction.{_split(measure[1])[0]}length_only")
        return numbers["mean"] if numbers else None

    two_way = " Two-way pairs hold in both directions: near 50 is right, and none is bold." if "two_way_" in subsets else ""
    control = (
        " Of neutral pairs the premise does not entail the hypothesis (if anything, the reverse): what is above 50 comes "
        "from how premises and hypotheses are written, not from what they mean; none is bold."
        if "neutral_" in subsets
        else ""
    )
    return _results(
        content,
        id=f"table-2{part}",
        title=f"Table 2{part}. Direction of entailment: {set_name}",
        caption="Percent of the entailment pairs (number in brackets) whose premise is rightly said to entail the hypothesis: "
        f"{_BY_SCORE if headed else ''}sim, by sim(h‖p) > sim(p‖h); var, by the larger sum of log-variances. {_SPREAD} "
        f"Length-only says that the sentence with more tokens entails, ties half.{two_way}{control}",
        measures=measures,
        heading=heading,
        baselines={"length-only": length_only, "chance": lambda _: 50.0},
    )


def sts_table(content: Content) -> Table | None:
    """Table 4: graded similarity; None if there are no such sets."""
    if not content.sts_sets:
        return None
    shown = {"spearman_cosine": "cosine of means", "spearman_similarity": "symmetrised similarity"}
    return _results(
        content,
        id="table-4",
        title="Table 4. Graded similarity (STS)",
        caption=f"Spearman's rank correlation × 100 with the gold scores; the training objectives do not ask for it. {_SPREAD}",
        measures=[(name, metric) for name in content.sts_sets for metric in shown],
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={},
    )


def _results(
    content: Content,
    *,
    id: str,
    title: str,
    caption: str,
    measures: Sequence[Measure],
    heading: Callable[[Measure], str],
    baselines: Mapping[str, Callable[[Measure], float | None]],
    remarks: Sequence[str] = (),
) -> Table:
    found = {name: [value(measure) for measure in measures] for name, value in baselines.items()}
    finished = [recipe for recipe in content.recipes if recipe.summary]
    best = [
        _best([_mean_of(recipe, measure) for recipe in finished] + [values[i] for values in found.values()])
        if not any(subset in measure[1] for subset in _NONE_IS_BEST)
        else None
        for i, measure in enumerate(measures)
    ]
    rows: list[Row] = []
    for recipe in content.recipes:
        rows.append(_recipe_row(recipe, measures, best))
        alone = [(name, f"similarity.{metric}") for name, metric in measures]
        if any(recipe.numbers(*measure) for measure in alone):
            about = (Cell(text=f"{recipe.name}, {ALONE}"), Cell(text=""), Cell(text=NONE))
            rows.append(Row(cells=(*about, *(_cell(recipe, measure) for measure in alone))))
    for name, values in found.items():
        cells = (Cell(text=percent(v), best=v is not None and percent(v) == top) for v, top in zip(values, best, strict=True))
        rows.append(Row(cells=(Cell(text=name), Cell(text=""), Cell(text=NONE), *cells), kind="baseline"))
    for objective in paper.OBJECTIVES:
        printed = [paper.figure(objective, *measure) for measure in measures]
        if any(printed):
            cells = (Cell(text=text or NONE) for text in printed)
            rows.append(Row(cells=(Cell(text=paper.ROW), Cell(text=objective), Cell(text="5"), *cells), kind="paper"))
    notes = [_BOLD, *([paper.NOTE] if rows[-1].kind == "paper" else []), *remarks]
    columns = (
        Column(name="recipe", number=False),
        Column(name="objective", number=False),
        Column(name="seeds"),
        *(Column(name=heading(measure)) for measure in measures),
    )
    return Table(id=id, title=title, caption=caption, columns=columns, rows=tuple(rows), notes=tuple(notes))


def _recipe_row(recipe: Recipe, measures: Sequence[Measure], best: Sequence[str | None]) -> Row:
    about = (
        Cell(text=recipe.name),
        Cell(text=recipe.shown_objective),
        Cell(text=str(len(recipe.per_seed)) if recipe.summary else NONE),
    )
    if not recipe.summary:
        return Row(cells=(*about, *(Cell(text="failed") for _ in measures)))
    return Row(cells=(*about, *(_cell(recipe, measure, best=top) for measure, top in zip(measures, best, strict=True))))


def _cell(recipe: Recipe, measure: Measure, places: int = 1, best: str | None = None) -> Cell:
    numbers = recipe.numbers(*measure)
    if numbers is None:
        by_variance = measure[1].endswith((".sim", "_sim", ".var", "_var", "spearman_similarity"))
        return Cell(text=UNDEFINED if by_variance and not recipe.uses_variance else NONE)
    return Cell(
        text=mean_sd(numbers, places),
        best=best is not None and percent(numbers["mean"], places) == best,
        detail=each_seed(recipe.by_seed(*measure)),
    )


def _best(values: Sequence[float | None]) -> str | None:
    """The highest value, as shown; None if there are not two values to compare."""
    given = [value for value in values if value is not None]
    return percent(max(given)) if len(given) > 1 else None


def _mean_of(recipe: Recipe, measure: Measure) -> float | None:
    numbers = recipe.numbers(*measure)
    return numbers["mean"] if numbers else None


def _mean(recipe: Recipe, set_name: str, metric: str) -> float:
    return _mean_of(recipe, (set_name, metric)) or 0.0


def _split(metric: str) -> tuple[str, str]:
    """Split a metric's name: direction.one_way_sim → (one_way_, sim)."""
    prefix, _, by = metric.removeprefix("direction.").rpartition("_")
    return (f"{prefix}_" if prefix else ""), by


def _columns(names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(name=name, number=i > 0) for i, name in enumerate(names))


def parts(sets: Sequence[str]) -> dict[str, str]:
    """A letter for each part of a table, one part for each set."""
    return {name: chr(ord("a") + i) if i < 26 else f"-{slug(name)}-{i}" for i, name in enumerate(sets)}
