"""Writes the report."""

from __future__ import annotations

from pathlib import Path

from pipeline.report import markdown, page
from pipeline.report.content import Content
from pipeline.report.measures import measure
from pipeline.report.sections import make_page
from pipeline.report.series import write_series

HTML, MARKDOWN, SERIES = "index.html", "report.md", "curves"


def write_report(content: Content, folder: Path) -> None:
    """Write index.html and report.md, both from the same page, and the points of its figures into curves/.

    Raises:
        UserError: a result file is missing or damaged.
    """
    measures = measure(content)
    document = make_page(content, measures)
    (folder / HTML).write_text(page.render(document), encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown.render(document), encoding="utf-8")
    write_series(content, measures, folder / SERIES)
