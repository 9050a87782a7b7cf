"""The page as Markdown, for pull requests: the tables, without the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.report.blocks import Block, Cell, Details, Figure, Page, Section, Table, Text, Warnings

_SPECIAL = re.compile(r"([\\`*\[\]|~])|(?<!\w)(_)|(_)(?!\w)")


def escaped(text: str) -> str:
    """Text escaped so that Markdown shows it unchanged, on one line."""
    line = " ".join(text.split())
    plain = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", plain)


def render(page: Page) -> str:
    """The whole page as Markdown."""
    lines = [f"# {escaped(page.title)}", "", escaped(page.lead), ""]
    if page.figures:
        lines += [f"The {len(page.figures)} figures are in index.html, in the same folder.", ""]
    for section in page.sections:
        lines += _section(section)
    return "\n".join(lines)


def _section(section: Section) -> list[str]:
    # A section of figures and their introduction says nothing without the figures.
    shows = any(isinstance(block, Figure) for block in section.blocks)
    if shows and not section.text_matters and all(isinstance(block, Figure | Text) for block in section.blocks):
        return []
    return [f"## {escaped(section.title)}", "", *_blocks(section.blocks)]


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [line for block in blocks for line in _block(block)]


def _block(block: Block) -> list[str]:
    if isinstance(block, Figure):
        return []
    if isinstance(block, Text):
        return [escaped(block.text), ""]
    if isinstance(block, Warnings):
        return [*(f"- **Warning:** {escaped(line)}" for line in block.lines), ""]
    if isinstance(block, Details):
        return [f"<details><summary>{escaped(block.summary)}</summary>", "", *_blocks(block.blocks), "</details>", ""]
    return _table(block)


def _table(table: Table) -> list[str]:
    title = table.title if table.title.endswith((".", "?")) else f"{table.title}."
    above = f"**{escaped(title)}** {escaped(table.caption)}".rstrip()
    header = [escaped(column.name) for column in table.columns]
    rule = ["---:" if column.number else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    notes = [line for note in table.notes for line in (escaped(note), "")]
    return [above, "", *(_line(cells) for cells in (header, rule, *rows)), "", *notes]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    return f"**{text}**" if cell.best else text
