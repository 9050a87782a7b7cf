"""The tables of running text and of transfer tasks: their results and their data."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from pipeline.families.text.dedup import IN_DOCUMENTS
from pipeline.families.text.running_text import AMONG
from pipeline.report.page import Section, Table
from pipeline.report.results import Results
from pipeline.report.tables import (
    Baselines,
    Headline,
    Measure,
    Profile,
    counted,
    counts_of,
    measures_of,
    of_main,
    results_table,
    section,
)


def headlines(results: Results) -> list[Headline]:
    """The next sentence of running text."""
    measures = [Measure(name, "next_sentence", name) for name in results.sets_with("next_sentence")]
    return [Headline(f"Next sentence among {AMONG}", measures, _chance(measures))]


def sections(results: Results) -> list[Section]:
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
    majority = {"most frequent class": of_main(results, tasks, lambda _: "majority")}
    linear = results_table(results, "table-8", "Table 8. Transfer tasks", caption, tasks, majority, gains=True)
    return [*section("text", "Running text", found), *section("tasks", "Transfer tasks", linear)]


def data(profile: Profile) -> list[Table]:
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


def figures(results: Results, folder: Path) -> list[Section]:
    """None."""
    return []
