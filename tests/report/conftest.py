"""Results, and the report of them, made once for all tests that only read them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from pipeline.config.params import Params
from pipeline.report.results import read_results
from pipeline.report.writing import HTML, MARKDOWN, write_report
from tests.report.reading import HtmlPage, Rows, read_html, read_markdown
from tests.report.results import write_results

SECTIONS = ("data", "model", "objective", "train", "tune", "evaluate", "experiments", "report")


def report_of(root: Path, params: Params, examples: Literal["full", "ids", "none"] = "ids") -> tuple[str, str]:
    """The report of a project folder: HTML and Markdown."""
    out = root / f"report-{examples}"
    out.mkdir()
    asked = params.model_copy(update={"report": params.report.model_copy(update={"examples": examples})})
    keys = {name: getattr(asked, name).model_dump(mode="json") for name in SECTIONS}
    write_report(read_results(asked, keys, root), out)
    return (out / HTML).read_text(encoding="utf-8"), (out / MARKDOWN).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Params]:
    """A project folder with results of the main recipe and three variants, one of which failed; and its parameters."""
    root = tmp_path_factory.mktemp("results")
    return root, write_results(root)


@pytest.fixture(scope="session")
def full(results: tuple[Path, Params]) -> tuple[str, str]:
    """HTML and Markdown with the sentences of the worst pairs."""
    return report_of(*results, "full")


@pytest.fixture(scope="session")
def page(full: tuple[str, str]) -> HtmlPage:
    return read_html(full[0])


@pytest.fixture(scope="session")
def tables(full: tuple[str, str]) -> list[Rows]:
    return read_markdown(full[1])
