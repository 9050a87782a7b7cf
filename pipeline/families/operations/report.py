"""The tables of operation rows: their results and their data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.data.schema import MOST_TARGETS, OPERATIONS
from pipeline.families.operations.scoring import LEAD_WORDS, MRR_AT, ROUGE
from pipeline.report import tables
from pipeline.report.page import Section, Table
from pipeline.report.results import Results

_PARTS = {"": "all", **{f"{operation}.": operation for operation in OPERATIONS}}


def headlines(results: Results) -> list[tables.Headline]:
    """Operators that rank the target first."""
    measures = [tables.Measure(name, "operator_recall", name) for name in results.sets_with("operator_mrr")]
    return [tables.Headline("Operators that rank the target first", measures, _ranked(results, measures))]


def sections(results: Results, folder: Path) -> list[Section]:
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
    parts: list[Table] = []
    for k, name in enumerate(results.sets_with("operator_mrr")):
        found, written = (
            [
                tables.Measure(name, f"{part}{metric}", f"{of}: {heading}")
                for part, of in _PARTS.items()
                for metric, heading in shown.items()
            ]
            for shown in (ranks, words)
        )
        title = f"Table 9. Retrieval by operators: {name}"
        parts += tables.results_table(results, f"table-9-{k}", title, retrieval, found, _ranked(results, found))
        lines = {"copy": "copy", "rule": "rule", "nearest training sentence": "nearest"}
        baselines = {row: tables.of_main(results, written, lambda m, of=of: _line(m, of)) for row, of in lines.items()}
        parts += tables.results_table(
            results, f"table-10-{k}", f"Table 10. Decoded operations: {name}", decoded, written, baselines
        )
    return tables.section("operators", "Sentence operators", parts)


def data(profile: tables.Profile) -> list[Table]:
    """The data of operation rows."""
    columns = {
        "rows in": "rows_in",
        "rows kept": "rows_out",
        "not in two parts": "other_than_two_parts",
        "target is input": "target_is_input",
        "components": "components",
        "largest": "largest_component",
        "dropped": tables.dropped,
        **{name: lambda counts, name=name: counts["operations"][name] for name in OPERATIONS},
    }
    caption = (
        "Dropped: rows that repeat another one, and training rows connected to a development or test set. Rows that share a "
        "sentence are connected, also through other rows, and stay in one set; such rows are a component. Not in two parts: "
        "split sentences that give no row. Largest: rows of the largest component."
    )
    return tables.counted("data-operations", "Operation rows", caption, columns, profile["operations"])


def _ranked(results: Results, measures: Iterable[tables.Measure]) -> tables.Baselines:
    return {
        row: tables.of_main(results, measures, lambda metric, row=row: metric.replace("operator_", f"{row}_"))
        for row in ("arithmetic", "copy")
    }


def _line(metric: str, line: str) -> str:
    operation, dot, name = metric.rpartition(".")
    return f"{operation}{dot}{line}_{name}"
