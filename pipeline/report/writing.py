"""Writing the report."""

from __future__ import annotations

from pathlib import Path

from pipeline.report import markdown, page
from pipeline.report.content import Content
from pipeline.report.sections import make_page

HTML, MARKDOWN = "index.html", "report.md"


def write_report(content: Content, folder: Path) -> None:
    """index.html and report.md, made of the same page.

    Raises:
        UserError: a file of results is missing or damaged.
    """
    made = make_page(content)
    (folder / HTML).write_text(page.render(made), encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown.render(made), encoding="utf-8")
