"""The tables of results: entailment against the rest, direction, graded similarity. One row per recipe, then the baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipeline.data.schema import MOST_TARGETS, OPERATIONS
from pipeline.evaluation.metrics import LEAD_WORDS, MRR_AT, ROUGE
from pipeline.evaluation.running_text import AMONG
from pipeline.report import gains, paper
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
    "hard_": "hard pairs",
    "neutral_": "neutral pairs",
}
ALONE = "by similarity alone"
"""Added to a recipe's name for the row of its similarity, if a relation head scores its pairs."""
_NONE_IS_BEST = ("two_way_", "neutral_", "threshold")


def nli_table(content: Content) -> Table:
    """Table 1: PR-AUC of every recipe on all pairs and on the hard pairs of every set, with baselines."""
    shown = {"pr_auc": "PR-AUC", **({"hard.pr_auc": "hard pairs"} if _hard(content) else {})}
    hard = ", ".join(
        f"{name} {count(_mean(content.main, name, 'hard.pairs'))} of {count(_mean(content.main, name, 'pairs'))}"
        for name in content.nli_sets
        if "hard.pr_auc" in shown
    )

    note = f" Hard pairs are those that it gets wrong, whose hypothesis alone misleads ({hard})." if hard else ""

    def chance(measure: Measure) -> float | None:
        name, metric = measure
        prefix = metric.removesuffix("pr_auc")
        return _share(_mean(content.main, name, f"{prefix}entailments"), _mean(content.main, name, f"{prefix}pairs"))

    return _results(
        content,
        id="table-1",
        title="Table 1. Entailment against the rest",
        caption=f"PR-AUC in percent. {_SPREAD} Hypothesis-only is a classifier of the hypothesis's words that never sees the "
        f"premise. Chance is the share of entailments.{note}",
        measures=[(name, metric) for name in content.nli_sets for metric in shown],
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={"hypothesis-only": lambda m: content.hypothesis_only.get(m[0], {}).get(m[1]), "chance": chance},
        remarks=[f"{recipe.name} has no result: {recipe.failure}" for recipe in content.recipes if recipe.failure],
    )


def set_table(content: Content, set_name: str, part: str) -> Table:
    """Table 1, a part for each set: accuracy, average precision, and entailment and its direction in one number."""
    shown = {
        "accuracy": "accuracy",
        "threshold": "threshold",
        "average_precision": "average precision",
        "directed_pr_auc": "directed PR-AUC",
        "directed_average_precision": "directed average precision",
        "hard.directed_pr_auc": "hard pairs: directed PR-AUC",
        "direction.neutral_sim": "neutral pairs by sim",
        "direction.neutral_score": "neutral pairs by score",
    }
    metrics = [metric for metric in shown if any(recipe.numbers(set_name, metric) for recipe in content.recipes)]

    def majority(measure: Measure) -> float | None:
        pairs, entailments = (_mean(content.main, set_name, key) for key in ("pairs", "entailments"))
        chance = _share(entailments, pairs)
        return {"accuracy": _mean_of(content.main, (set_name, "majority_accuracy")), "average_precision": chance}.get(measure[1])

    def length_only(measure: Measure) -> float | None:
        metric = measure[1]
        by_length = "direction.neutral_length_only" if metric.startswith("direction.") else f"{metric}_length_only"
        return _mean_of(content.main, (set_name, by_length))

    return _results(
        content,
        id=f"table-1{part}",
        title=f"Table 1{part}. Entailment and its direction: {set_name}",
        caption=f"Percent; the threshold is a score. {_SPREAD} A pair is called entailment if its score is "
        f"{content.entailment_if} the threshold: that with the highest accuracy on dev, or on the set that evaluate.threshold_on "
        "names; never on the test set itself. Directed: right are the entailment pairs that hold one way; wrong are the neutral "
        "and contradiction pairs, and every right pair turned round. A symmetric score reaches about half. Length-only scores a "
        "pair by how many tokens longer its premise is. Neutral pairs: how often direction says that their premise entails, "
        "although it does not; what is above 50 comes from how premises and hypotheses are written, and none is bold.",
        measures=[(set_name, metric) for metric in metrics],
        heading=lambda measure: shown[measure[1]],
        baselines={
            "hypothesis-only": lambda m: content.hypothesis_only.get(set_name, {}).get(m[1]),
            "majority, chance": majority,
            "length-only": length_only,
        },
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


def text_table(content: Content) -> Table | None:
    """Table 7: the next sentence of running text; None without such sets."""
    if not content.text_sets:
        return None
    shown = {"next_sentence": "by the objective", "next_sentence_cosine": "cosine of means"}
    measures = [(name, metric) for name in content.text_sets for metric in shown]
    gained = gains.gain_rows(content, measures)
    return _results(
        content,
        id="table-7",
        title=f"Table 7. The next sentence among {AMONG}",
        caption=f"Percent in which the next sentence of the document has the highest score among the next sentences of {AMONG} "
        "sentences in a row. By the objective: quickthoughts scores with f of the sentence and g of the candidate; for the "
        f"others it is the cosine of the means. {_SPREAD}",
        measures=measures,
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={"chance": lambda _: 100 / AMONG},
        gained=gained,
        remarks=[gains.NOTE] if gained else [],
    )


def task_table(content: Content) -> Table | None:
    """Table 8: transfer tasks; None if there are none."""
    if not content.tasks:
        return None
    shown = {"logistic": "logistic regression", "mean_classifier": "mean classifier"}
    measures = [(name, metric) for name in content.tasks for metric in shown]
    gained = gains.gain_rows(content, measures)
    return _results(
        content,
        id="table-8",
        title="Table 8. Transfer tasks",
        caption="Accuracy in percent of linear classifiers on the frozen means: a logistic regression, after SentEval, and the "
        f"mean classifier of CURL. {_SPREAD}",
        measures=measures,
        heading=lambda measure: f"{measure[0]}: {shown[measure[1]]}",
        baselines={"most frequent class": lambda measure: _mean_of(content.main, (measure[0], "majority"))},
        gained=gained,
        remarks=[gains.NOTE] if gained else [],
    )


def retrieval_table(content: Content, set_name: str, part: str) -> Table:
    """Table 9: how high the targets of operations rank, on one set."""
    measures = [(set_name, metric) for metric in _of_operations(content, set_name, ("operator_mrr", "operator_recall"))]
    gained = gains.gain_rows(content, measures)

    def by(line: str) -> Callable[[Measure], float | None]:
        return lambda measure: _mean_of(content.main, (measure[0], measure[1].replace("operator_", f"{line}_")))

    return _results(
        content,
        id=f"table-9{part}",
        title=f"Table 9{part}. Retrieval by operators: {set_name}",
        caption=f"MRR@{MRR_AT}, and the percent of rows whose target is first, by the cosine with the operator's output, in a "
        "pool of all targets and inputs of the operation. The first columns are means over the operations. Arithmetic operators "
        f"are sum and difference of the main recipe's embeddings, as unit vectors; copy takes the first input. {_SPREAD}",
        measures=measures,
        heading=lambda measure: _operation_heading(measure[1], {"operator_mrr": f"MRR@{MRR_AT}", "operator_recall": "recall@1"}),
        baselines={"arithmetic": by("arithmetic"), "copy": by("copy")},
        gained=gained,
        remarks=[gains.NOTE] if gained else [],
    )


def writing_table(content: Content, set_name: str, part: str) -> Table | None:
    """Table 10: what the decoder writes for the operators' outputs, on one set; None if no recipe has a decoder."""
    metrics = _of_operations(content, set_name, ("exact", *ROUGE))
    if not metrics:
        return None

    def by(line: str) -> Callable[[Measure], float | None]:
        def value(measure: Measure) -> float | None:
            operation, dot, metric = measure[1].rpartition(".")
            return _mean_of(content.main, (measure[0], f"{operation}{dot}{line}_{metric}"))

        return value

    shown = {"exact": "exact", "rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L"}
    return _results(
        content,
        id=f"table-10{part}",
        title=f"Table 10{part}. Decoded operations: {set_name}",
        caption="Percent of rows whose decoded tokens are those of the target, and ROUGE-1, -2 and -L (F1, lower case, not "
        "stemmed). Two lines see the text, where the decoder sees one vector. Copy: the inputs, one after the other. Rule: for a "
        "difference, the first sentence without the words of the second; for a compression, the first "
        f"{LEAD_WORDS} words; else as copy. Nearest: the training target of the operation, of at most {MOST_TARGETS:,}, that "
        f"is nearest to the main recipe's output. {_SPREAD}",
        measures=[(set_name, metric) for metric in metrics],
        heading=lambda measure: _operation_heading(measure[1], shown),
        baselines={"copy": by("copy"), "rule": by("rule"), "nearest training sentence": by("nearest")},
    )


def _of_operations(content: Content, set_name: str, metrics: Sequence[str]) -> list[str]:
    """The metrics, over all operations and for each, that some recipe has on a set."""
    names = [*metrics, *(f"{operation}.{metric}" for operation in OPERATIONS for metric in metrics)]
    return [name for name in names if any(recipe.numbers(set_name, name) for recipe in content.recipes)]


def _operation_heading(metric: str, shown: Mapping[str, str]) -> str:
    operation, _, name = metric.rpartition(".")
    return f"{operation or 'all'}: {shown[name]}"


def _results(
    content: Content,
    *,
    id: str,
    title: str,
    caption: str,
    measures: Sequence[Measure],
    heading: Callable[[Measure], str],
    baselines: Mapping[str, Callable[[Measure], float | None]],
    gained: Mapping[str, Sequence[str]] = MappingProxyType({}),
    remarks: Sequence[str] = (),
) -> Table:
    baseline_values = {name: [value(measure) for measure in measures] for name, value in baselines.items()}
    finished = [recipe for recipe in content.recipes if recipe.summary]
    alone = [(name, f"similarity.{metric}") for name, metric in measures]
    best = [
        _best(
            [_mean_of(recipe, shown[i]) for recipe in finished for shown in (measures, alone)]
            + [values[i] for values in baseline_values.values()]
        )
        if not any(subset in measure[1] for subset in _NONE_IS_BEST)
        else None
        for i, measure in enumerate(measures)
    ]
    rows: list[Row] = []
    for recipe in content.recipes:
        rows.append(_recipe_row(recipe, measures, best))
        if any(recipe.numbers(*measure) for measure in alone):
            about = (Cell(text=f"{recipe.name}, {ALONE}"), Cell(text=""), Cell(text=NONE))
            rows.append(Row(cells=(*about, *(_cell(recipe, m, top) for m, top in zip(alone, best, strict=True)))))
    for name, values in baseline_values.items():
        cells = (Cell(text=percent(v), best=v is not None and percent(v) == top) for v, top in zip(values, best, strict=True))
        rows.append(Row(cells=(Cell(text=name), Cell(text=""), Cell(text=NONE), *cells), kind="baseline"))
    for name, texts in gained.items():
        about = (Cell(text=f"gain over {name}"), Cell(text=""), Cell(text=NONE))
        rows.append(Row(cells=(*about, *(Cell(text=text) for text in texts)), kind="baseline"))
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
    return Row(cells=(*about, *(_cell(recipe, measure, top) for measure, top in zip(measures, best, strict=True))))


def _cell(recipe: Recipe, measure: Measure, best: str | None = None) -> Cell:
    numbers, places = recipe.numbers(*measure), 3 if measure[1] == "threshold" else 1
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
    numbers = [value for value in values if value is not None]
    return percent(max(numbers)) if len(numbers) > 1 else None


def _mean_of(recipe: Recipe, measure: Measure) -> float | None:
    numbers = recipe.numbers(*measure)
    return numbers["mean"] if numbers else None


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _hard(content: Content) -> bool:
    """Whether the hard pairs of the sets are known."""
    return any(content.main.numbers(name, "hard.pairs") for name in content.nli_sets)


def _mean(recipe: Recipe, set_name: str, metric: str) -> float:
    return _mean_of(recipe, (set_name, metric)) or 0.0


def _split(metric: str) -> tuple[str, str]:
    """Split a metric's name: direction.one_way_sim → (one_way_, sim)."""
    prefix, _, by = metric.removeprefix("direction.").rpartition("_")
    return (f"{prefix}_" if prefix else ""), by


def parts(sets: Sequence[str]) -> dict[str, str]:
    """A letter for each part of a table, one part for each set."""
    return {name: chr(ord("a") + i) if i < 26 else f"-{slug(name)}-{i}" for i, name in enumerate(sets)}
