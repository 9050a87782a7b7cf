"""The tables of running text and of transfer tasks: their results and their data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.families.text.running_text import AMONG, IN_DOCUMENTS
from pipeline.report import tables
from pipeline.report.page import Section, Table
from pipeline.report.results import Results


def headlines(results: Results) -> list[tables.Headline]:
    """The next sentence of running text."""
    measures = [tables.Measure(name, "next_sentence", name) for name in results.sets_with("next_sentence")]
    return [tables.Headline(f"Next sentence among {AMONG}", measures, _chance(measures))]


def sections(results: Results, folder: Path) -> list[Section]:
    """Tables 7 and 8."""
    shown = {"next_sentence": "by the objective", "next_sentence_cosine": "cosine of means"}
    text = tables.measures_of(results.sets_with("next_sentence"), shown)
    caption = (
        f"Percent in which the next sentence of the document has the highest score among the next sentences of {AMONG} "
        "sentences in a row. By the objective: quickthoughts scores with f of the sentence and g of the candidate; for the "
        "others it is the cosine of the means."
    )
    title = f"Table 7. The next sentence among {AMONG}"
    found = tables.results_table(results, "table-7", title, caption, text, _chance(text))
    tasks = tables.measures_of(
        results.sets_with("logistic"), {"logistic": "logistic regression", "mean_classifier": "mean classifier"}
    )
    caption = (
        "Accuracy in percent of linear classifiers on the frozen means: a logistic regression, after SentEval, and the mean "
        "classifier of CURL."
    )
    majority = {"most frequent class": tables.of_main(results, tasks, lambda _: "majority")}
    linear = tables.results_table(results, "table-8", "Table 8. Transfer tasks", caption, tasks, majority)
    return [*tables.section("text", "Running text", found), *tables.section("tasks", "Transfer tasks", linear)]


def data(profile: tables.Profile) -> list[Table]:
    """The data of running text and of transfer tasks."""
    shown = {
        "documents in": "documents_in",
        "documents kept": "documents_out",
        "sentences": "sentences",
        "repeated": "repeated_sentences",
        "boilerplate": "boilerplate_sentences",
        "also in training": "sentences_in_train",
        "dropped": tables.dropped,
    }
    caption = (
        "Dropped: documents of one sentence, and training documents that repeat another one or are in a development or test set. "
        f"Repeated: sentences that occurred before. Boilerplate: sentences that occur in {IN_DOCUMENTS} documents or more."
    )
    tasks = {"rows": "rows", "classes": lambda counts: ", ".join(counts["classes"])}
    return [
        *tables.counted("data-text", "Running text", caption, shown, profile["text"]),
        *tables.counted("data-tasks", "Transfer tasks", "Rows of all parts.", tasks, profile["tasks"]),
    ]


def _chance(measures: Iterable[tables.Measure]) -> tables.Baselines:
    return {"chance": {measure.key: 100 / AMONG for measure in measures}}
