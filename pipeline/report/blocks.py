"""What a page is made of, before it is HTML or Markdown. Every string is plain text; whoever renders it escapes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

RowKind = Literal["model", "baseline", "paper"]
"""What a row is about: a trained model, a baseline that is not trained on pairs, or the paper's own figures."""

_NUMBER = re.compile(r"(?=\D*\d)[-\d.,:/%()±×·–\s]*|–|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    best: bool = False
    """The best of its column."""
    detail: str = ""
    """More to the number, for a reader who points at it: its value for each seed."""
    code: bool = False
    """Monospaced: a digest, a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Heading of a column."""

    name: str
    number: bool = True
    """Numbers are aligned at the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells of a row; the first one names the row."""

    cells: tuple[Cell, ...]
    kind: RowKind = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption above and its notes below."""

    id: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plotly figure. Markdown has none; its numbers stand in the tables or in the curves beside the report."""

    id: str
    title: str
    caption: str
    data: Sequence[Mapping[str, Any]]
    """Traces. `meta` of each says what it shows, see `pipeline.report.traces`."""
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Warnings:
    """What a reader must not overlook, one line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded away until somebody asks for them."""

    summary: str
    blocks: tuple[Block, ...]


Block = Table | Figure | Text | Warnings | Details


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands under it."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    models: tuple[tuple[int, str], ...]
    """Number and name of the recipes that have models, which the page's switches go by."""
    seeds: tuple[int, ...] = ()
    """Seeds of any of them, for the same."""

    @property
    def figures(self) -> list[Figure]:
        """All of them, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def plain_table(id: str, title: str, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of texts; a column that holds nothing but numbers is aligned as such."""
    listed = [tuple(row) for row in rows]
    columns = tuple(
        Column(name=name, number=i > 0 and all(_NUMBER.fullmatch(row[i]) for row in listed)) for i, name in enumerate(header)
    )
    filled = tuple(Row(cells=tuple(Cell(text=text) for text in row)) for row in listed)
    return Table(id=id, title=title, caption=caption, columns=columns, rows=filled)


def slug(name: str) -> str:
    """A name as part of an id: letters, digits and hyphens; different names may give the same, so add a number where they do."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
