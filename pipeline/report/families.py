"""The tables of labelled pairs, of running text and of operation rows: their results and their data.

What is particular to a family of models is here, one family after the other, and for single pairs in `pipeline.report.scores`.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from pipeline.data.measure import percent as share_of
from pipeline.data.prepare_text import IN_DOCUMENTS
from pipeline.data.schema import LABELS, MOST_TARGETS, OPERATIONS
from pipeline.data.warn import nli_sets
from pipeline.evaluation.metrics import LEAD_WORDS, MRR_AT, ROUGE
from pipeline.evaluation.running_text import AMONG
from pipeline.report.page import Section, Table, percent
from pipeline.report.results import Results
from pipeline.report.tables import QUOTED, Baselines, Headline, Measure, Profile, counted, counts_of, measures_of, results_table

# Labelled pairs.

# Sentence Representations via Gaussian Embedding (arXiv 2305.12990), Tables 1 and 2; SimCSE has no direction.
_OBJECTIVES = ("simcse", "ent", "ent+con", "ent+rev", "ent+con+rev")
_PUBLISHED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("snli_test", "accuracy"): (74.96, 72.50, 78.33, 70.64, 77.51),
    ("snli_test", "pr_auc"): (66.76, 61.44, 72.50, 57.57, 69.33),
    ("sick_test", "accuracy"): (86.11, 76.50, 85.21, 74.24, 84.37),
    ("sick_test", "pr_auc"): (81.41, 64.33, 80.13, 57.31, 78.92),
    ("snli_test", "direction.sim"): (81.65, 61.56, 97.01, 97.09),
    ("snli_test", "direction.var"): (81.19, 60.44, 97.12, 97.21),
    ("sick_test", "direction.sim"): (63.01, 61.62, 71.23, 69.22),
    ("sick_test", "direction.var"): (62.44, 62.18, 71.93, 70.13),
}
_ENTAILMENT = (
    "Hypothesis-only is a classifier of the hypothesis's words that never sees the premise; hard pairs are those that it gets "
    "wrong. Chance is the share of entailments. The threshold is the score with the highest accuracy on dev, or on the set that "
    "evaluate.threshold_on names. Directed: right are the entailment pairs that hold one way; wrong are the neutral and "
    "contradiction pairs, and every right pair turned round. A symmetric score reaches about half. Length-only scores a pair by "
    "how many tokens longer its premise is. The paper's: arXiv 2305.12990, Tables 1 and 2; BERT-base, all of SNLI and MultiNLI, "
    "mean of five seeds; direction over all entailment pairs; never bold."
)
_DIRECTION = (
    "Percent of the entailment pairs (number in brackets) whose premise is rightly said to entail the hypothesis: by score, the "
    "scores of the pair both ways, if a relation head gives them; by sim, sim(h‖p) > sim(p‖h); by var, the larger sum of "
    "log-variances. Length-only: the sentence with more tokens entails, ties half. Two-way pairs hold in both directions: near "
    "50 is right. Of neutral pairs the premise does not entail the hypothesis: what is above 50 comes from how premises and "
    "hypotheses are written. Neither is bold."
)
_OF_SET = {
    "accuracy": "accuracy",
    "threshold": "threshold",
    "average_precision": "average precision",
    "directed_pr_auc": "directed PR-AUC",
    "directed_average_precision": "directed average precision",
    "hard.directed_pr_auc": "hard pairs: directed PR-AUC",
}
_SUBSETS = {
    "": "all",
    "not_longer_": "premise not longer",
    "one_way_": "one-way",
    "one_way_not_longer_": "one-way, premise not longer",
    "two_way_": "two-way",
    "hard_": "hard pairs",
    "neutral_": "neutral pairs",
}


def pairs_headlines(results: Results) -> list[Headline]:
    """Entailment, and its direction: of one-way pairs where they are known."""
    sets = results.test_sets_with("accuracy")
    direction: list[Measure] = []
    for name, by in itertools.product(sets, ("sim", "score")):
        subset = "one_way_" if results.main.mean(name, "direction.one_way_pairs") else ""
        heading = name + (", one-way" if subset else "") + (", by score" if by == "score" else "")
        direction.append(Measure(name, f"direction.{subset}{by}", heading))
    entailment = [Measure(name, "pr_auc", name) for name in sets]
    best: Baselines = {f"{QUOTED} best": {key: max(values) for key, values in _PUBLISHED.items()}}
    return [
        Headline("PR-AUC of entailment", entailment, {**_baselines(results, entailment), **best}),
        Headline("Direction of entailment", direction, {**_baselines(results, direction), **best}),
    ]


def pairs_sections(results: Results) -> list[Section]:
    """Tables 1, 2 and 4."""

    def made(id: str, title: str, measures: Sequence[Measure]) -> list[Table]:
        return results_table(results, id, title, "Percent.", measures, {**_baselines(results, measures), **published})

    published = {
        f"{QUOTED} {objective}": {key: values[k] for key, values in _PUBLISHED.items() if -k <= len(values)}
        for k, objective in enumerate(_OBJECTIVES, -len(_OBJECTIVES))
    }
    sets, of_set = results.sets_with("accuracy"), "Table 1. Entailment, more of"
    areas = measures_of(sets, {"pr_auc": "PR-AUC", "hard.pr_auc": "hard pairs"})
    entailment = made("table-1", "Table 1. PR-AUC of entailment against the rest", areas)
    direction: list[Table] = []
    for k, name in enumerate(sets):
        shown = [
            Measure(name, key, heading, key != "threshold", 3 if key == "threshold" else 1) for key, heading in _OF_SET.items()
        ]
        entailment += made(f"table-1-{k}", f"{of_set} {name}", shown)
        measures = [
            Measure(name, f"direction.{subset}{by}", f"{heading} ({pairs:,.0f}): {by}", subset not in ("two_way_", "neutral_"))
            for subset, heading in _SUBSETS.items()
            for by in ("score", "sim", "var")
            if (pairs := results.main.mean(name, f"direction.{subset}pairs")) is not None
        ]
        direction += made(f"table-2-{k}", f"Table 2. Direction of entailment: {name}", measures)
    graded = {"spearman_cosine": "cosine of means", "spearman_similarity": "symmetrised similarity"}
    caption = "Spearman's rank correlation × 100 with the gold scores; the training objectives do not ask for it."
    measures = measures_of(results.sets_with("spearman_cosine"), graded)
    return [
        *_section("nli", "Entailment against the rest", entailment, _ENTAILMENT),
        *_section("direction", "Direction of entailment", direction, _DIRECTION),
        *_section("sts", "Graded similarity", results_table(results, "table-4", "Table 4. STS", caption, measures, {})),
    ]


def _baselines(results: Results, measures: Iterable[Measure]) -> dict[str, dict[tuple[str, str], float | None]]:
    """Metrics of a classifier without the premise, of the more frequent answer, of the number of tokens, and of chance."""
    rows: dict[str, dict[tuple[str, str], float | None]] = defaultdict(dict)
    for m in measures:

        def mean(metric: str, name: str = m.set_name) -> float | None:
            return results.main.mean(name, metric)

        rows["hypothesis-only"][m.key] = results.hypothesis_only.get(m.set_name, {}).get(m.metric)
        rows["majority"][m.key] = mean("majority_accuracy") if m.metric == "accuracy" else None
        if m.metric.startswith("direction."):
            rows["length-only"][m.key] = mean(re.sub("(score|sim|var)$", "length_only", m.metric))
            rows["chance"][m.key] = 50.0
        else:
            rows["length-only"][m.key] = mean(f"{m.metric}_length_only")
            part = "hard." if m.metric.startswith("hard.") else ""
            entailments, pairs = mean(f"{part}entailments"), mean(f"{part}pairs")
            if m.metric in ("pr_auc", "hard.pr_auc", "average_precision") and entailments is not None and pairs:
                rows["chance"][m.key] = 100 * entailments / pairs
    return rows


def pairs_data(profile: Profile) -> list[Table]:
    """The labels, the triplets, and what the hypothesis alone predicts."""
    if not nli_sets(profile):
        return []

    def label(name: str) -> Callable[[Profile], object]:
        return lambda part: (
            f"{part['labels'][name]:,} ({percent(share_of(part['labels'][name], sum(part['labels'].values())))} %)"
        )

    labels = {
        **{name: label(name) for name in LABELS},
        "length-only direction": lambda part: part["direction"].get("length_only"),
        "premise not longer": lambda part: part["direction"].get("premise_not_longer"),
    }
    triplets = {
        "number": lambda part: part["triplets"],
        "premises": lambda part: part["premises"],
        "entailments per premise": lambda part: f"{part['entailments_per_premise']['mean']:.2f}",
        "most": lambda part: part["entailments_per_premise"]["max"],
        **{
            f"batch {row['batch']}": lambda part, k=k: f"{part['expected_false_negatives'][k]['per_row']:.3f}"
            for k, row in enumerate(profile["triplets"]["all"].get("expected_false_negatives", ()))
        },
    }
    alone = {
        "hypothesis-only PR-AUC": "pr_auc",
        "chance": "entailments",
        "hypothesis-only accuracy": "accuracy",
        "majority": "majority_accuracy",
    }
    kinds = {name.replace("_", " "): part for name, part in profile["triplets"].items() if part["triplets"]}
    return [
        *counted(
            "data-labels",
            "Labels",
            "Of the entailment pairs, in percent: more words in the premise (ties half), and a premise that is not longer.",
            labels,
            nli_sets(profile),
        ),
        *counted(
            "data-triplets",
            "Triplets",
            "Entailments of one premise are false negatives of each other when they meet in a batch (train.same_premise); the "
            "last columns give how many a row of the loss is expected to have in a random batch of that size.",
            triplets,
            kinds,
        ),
        *counted(
            "data-baselines",
            "The hypothesis alone",
            "Percent that a classifier reaches without the premise; chance is the share of entailments.",
            {heading: lambda numbers, key=key: numbers.get(key) for heading, key in alone.items()},
            {name: profile["hypothesis_only"][name] for name in nli_sets(profile) if name in profile["hypothesis_only"]},
        ),
    ]


# Running text and transfer tasks.


def text_headlines(results: Results) -> list[Headline]:
    """The next sentence of running text."""
    measures = [Measure(name, "next_sentence", name) for name in results.sets_with("next_sentence")]
    return [Headline(f"Next sentence among {AMONG}", measures, _chance(measures))]


def text_sections(results: Results) -> list[Section]:
    """Tables 7 and 8."""
    shown = {"next_sentence": "by the objective", "next_sentence_cosine": "cosine of means"}
    text = measures_of(results.sets_with("next_sentence"), shown)
    caption = (
        f"Percent in which the next sentence of the document has the highest score among the next sentences of {AMONG} "
        "sentences in a row. By the objective: quickthoughts scores with f of the sentence and g of the candidate; for the "
        "others it is the cosine of the means."
    )
    found = results_table(
        results, "table-7", f"Table 7. The next sentence among {AMONG}", caption, text, _chance(text), gains=True
    )
    tasks = measures_of(results.sets_with("logistic"), {"logistic": "logistic regression", "mean_classifier": "mean classifier"})
    caption = (
        "Accuracy in percent of linear classifiers on the frozen means: a logistic regression, after SentEval, and the mean "
        "classifier of CURL."
    )
    majority = {"most frequent class": _of_main(results, tasks, lambda _: "majority")}
    linear = results_table(results, "table-8", "Table 8. Transfer tasks", caption, tasks, majority, gains=True)
    return [*_section("text", "Running text", found), *_section("tasks", "Transfer tasks", linear)]


def text_data(profile: Profile) -> list[Table]:
    """The data of running text and of transfer tasks."""
    shown = {
        "documents in": "documents_in",
        "documents kept": "documents_out",
        "sentences": "sentences",
        "repeated": "repeated_sentences",
        "boilerplate": "boilerplate_sentences",
        "also in training": "sentences_in_train",
    }
    caption = (
        "Dropped: documents of one sentence, and training documents that repeat another one or are in a development or test set. "
        f"Repeated: sentences that occurred before. Boilerplate: sentences that occur in {IN_DOCUMENTS} documents or more."
    )
    tasks = {"rows": itemgetter("rows"), "classes": lambda counts: ", ".join(counts["classes"])}
    return [
        *counted("data-text", "Running text", caption, counts_of(shown), profile["text"]),
        *counted("data-tasks", "Transfer tasks", "Rows of all parts.", tasks, profile["tasks"]),
    ]


def _chance(measures: Iterable[Measure]) -> Baselines:
    return {"chance": {measure.key: 100 / AMONG for measure in measures}}


# Operation rows.

_PARTS = {"": "all", **{f"{operation}.": operation for operation in OPERATIONS}}


def operation_headlines(results: Results) -> list[Headline]:
    """Operators that rank the target first."""
    measures = [Measure(name, "operator_recall", name) for name in results.sets_with("operator_mrr")]
    return [Headline("Operators that rank the target first", measures, _ranked(results, measures))]


def operation_sections(results: Results) -> list[Section]:
    """Tables 9 and 10, a part for each set."""
    ranks = {"operator_mrr": f"MRR@{MRR_AT}", "operator_recall": "recall@1"}
    words = dict(zip(("exact", *ROUGE), ("exact", "R-1", "R-2", "R-L"), strict=True))
    retrieval = (
        f"MRR@{MRR_AT}, and the percent of rows whose target is first, by the cosine with the operator's output, in a pool of "
        "all targets and inputs of the operation. The first columns are means over the operations. Arithmetic operators are sum "
        "and difference of the main recipe's embeddings, as unit vectors; copy takes the first input."
    )
    decoded = (
        "Percent of rows whose decoded tokens are those of the target, and ROUGE-1, -2 and -L (F1, lower case, not stemmed). Two "
        "lines see the text, where the decoder sees one vector. Copy: the inputs, one after the other. Rule: for a difference, "
        f"the first sentence without the words of the second; for a compression, the first {LEAD_WORDS} words; else as copy. "
        f"Nearest: the training target of the operation, of at most {MOST_TARGETS:,}, nearest to the main recipe's output."
    )
    tables: list[Table] = []
    for k, name in enumerate(results.sets_with("operator_mrr")):
        found, written = (
            [
                Measure(name, f"{part}{metric}", f"{of}: {heading}")
                for part, of in _PARTS.items()
                for metric, heading in shown.items()
            ]
            for shown in (ranks, words)
        )
        title, kinds = f"Table 9. Retrieval by operators: {name}", ("operation", OPERATIONS)
        baselines = _ranked(results, found)
        tables += results_table(results, f"table-9-{k}", title, retrieval, found, baselines, gains=True, kinds=kinds)
        lines = {"copy": "copy", "rule": "rule", "nearest training sentence": "nearest"}
        baselines = {row: _of_main(results, written, lambda m, of=of: _line(m, of)) for row, of in lines.items()}
        tables += results_table(results, f"table-10-{k}", f"Table 10. Decoded operations: {name}", decoded, written, baselines)
    return _section("operators", "Sentence operators", tables)


def operation_data(profile: Profile) -> list[Table]:
    """The data of operation rows."""
    more = {
        "not in two parts": "other_than_two_parts",
        "target is input": "target_is_input",
        "components": "components",
        "largest": "largest_component",
    }
    columns = counts_of({"rows in": "rows_in", "rows kept": "rows_out"} | more)
    columns |= {name: lambda counts, name=name: counts["operations"][name] for name in OPERATIONS}
    caption = (
        "Dropped: rows that repeat another one, and training rows connected to a development or test set. Rows that share a "
        "sentence are connected, also through other rows, and stay in one set; such rows are a component. Not in two parts: "
        "split sentences that give no row. Largest: rows of the largest component."
    )
    return counted("data-operations", "Operation rows", caption, columns, profile["operations"])


def _ranked(results: Results, measures: Iterable[Measure]) -> Baselines:
    return {
        row: _of_main(results, measures, lambda metric, row=row: metric.replace("operator_", f"{row}_"))
        for row in ("arithmetic", "copy")
    }


def _line(metric: str, line: str) -> str:
    operation, dot, name = metric.rpartition(".")
    return f"{operation}{dot}{line}_{name}"


def _of_main(results: Results, measures: Iterable[Measure], renamed: Callable[[str], str]) -> dict[tuple[str, str], float | None]:
    """A baseline that the main recipe's results have under another name of the metric."""
    return {m.key: results.main.mean(m.set_name, renamed(m.metric)) for m in measures}


def _section(id: str, title: str, tables: Sequence[Table], *texts: str) -> list[Section]:
    return [Section(id, title, (*texts, *tables))] if tables else []
