"""Reading a report back: elements and tables of an HTML page, tables of a Markdown page; without the code that made them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

Rows = list[list[str]]


@dataclass(slots=True)
class HtmlPage:
    """What a browser would make of it."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list[tuple[str, dict[str, str | None]]])
    """Tag and attributes of each start tag."""
    tables: dict[str, Rows] = field(default_factory=dict[str, Rows])
    """Id of the figure → rows of cells, the heading first."""
    scripts: list[str] = field(default_factory=list[str])
    text: str = ""

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def figures(self) -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
        """Id → traces and layout, as plotly is given them."""
        found: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
        for script in self.scripts:
            if match := re.search(r'Plotly\.newPlot\(\s*"([\w-]+)-plot",\s*', script):
                data, end = json.JSONDecoder().raw_decode(script, match.end())
                layout, _ = json.JSONDecoder().raw_decode(script, re.compile(r",\s*").match(script, end).end())  # type: ignore[union-attr]
                found[match[1]] = data, layout
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = HtmlPage()
        self._table = ""
        self._cell = False
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.page.elements.append((tag, given))
        if tag == "figure" and given.get("class") == "table":
            self._table = given["id"] or ""
            self.page.tables[self._table] = []
        if tag in ("script", "style"):
            self._in = tag
            self.page.scripts += [""] if tag == "script" else []
        rows = self.page.tables.get(self._table, [])
        if tag == "tr":
            rows.append([])
        if tag in ("td", "th"):
            rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        if tag in ("script", "style"):
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.page.scripts[-1] += data
        elif not self._in:
            self.page.text += data
        if self._cell:
            self.page.tables[self._table][-1][-1] += data


def read_html(text: str) -> HtmlPage:
    parser = _Parser()
    parser.feed(text)
    parser.close()
    return parser.page


def read_markdown(text: str) -> list[Rows]:
    """Every table in order, the heading first, escapes and bold undone."""
    tables: list[Rows] = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                tables.append([])
            cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not all(re.fullmatch(r"-+:?", cell) for cell in cells):
                tables[-1].append(cells)
        previous = line
    return tables


def plain(cell: str) -> str:
    """A cell as a reader sees it."""
    text = cell.strip()
    if re.fullmatch(r"\*\*.+\*\*", text) and not text.startswith("**\\"):
        text = text[2:-2]
    return html.unescape(re.sub(r"\\(.)", r"\1", text))
