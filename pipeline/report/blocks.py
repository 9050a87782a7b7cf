"""The building blocks of a page, independent of HTML and Markdown. Every string is plain text; the renderers escape it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

RowKind = Literal["model", "baseline", "paper"]
"""What a row shows: a trained model, a baseline that is not trained on pairs, or the paper's own figures."""

_NUMBER = re.compile(r"(?=\D*\d)[-\d.,:/%()±×·–\s]*|–|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    best: bool = False
    """Whether this is the best value of its column."""
    detail: str = ""
    """Shown when the reader points at the cell: the value for each seed."""
    code: bool = False
    """Whether to use a monospaced font (digests, keys)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The heading of a column."""

    name: str
    number: bool = True
    """Whether the column holds numbers, which are aligned to the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row; the first cell names the row."""

    cells: tuple[Cell, ...]
    kind: RowKind = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a caption above it and notes below."""

    id: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plotly figure. The Markdown page leaves it out; its numbers are in the tables, or in the CSV files of curves/."""

    id: str
    title: str
    caption: str
    data: Sequence[Mapping[str, Any]]
    """The traces. The `meta` of a trace says what it shows, see `pipeline.report.traces`."""
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Warnings:
    """Warnings that a reader must not overlook, one line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that stay folded until the reader opens them."""

    summary: str
    blocks: tuple[Block, ...]


Block = Table | Figure | Text | Warnings | Details


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and its blocks."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    text_matters: bool = False
    """Whether its text says something without the figures, so that the Markdown page keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    models: tuple[tuple[int, str], ...]
    """Number and name of each recipe with models; the page has a switch for each."""
    seeds: tuple[int, ...] = ()
    """All seeds of these recipes; the page has a switch for each."""

    @property
    def figures(self) -> list[Figure]:
        """All figures of the page, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def plain_table(id: str, title: str, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of texts. A column that holds only numbers is aligned to the right."""
    listed = [tuple(row) for row in rows]
    columns = tuple(
        Column(name=name, number=i > 0 and all(_NUMBER.fullmatch(row[i]) for row in listed)) for i, name in enumerate(header)
    )
    filled = tuple(Row(cells=tuple(Cell(text=text) for text in row)) for row in listed)
    return Table(id=id, title=title, caption=caption, columns=columns, rows=filled)


def slug(name: str) -> str:
    """A name made fit for an id: letters, digits and hyphens. Two names can give the same slug, so add a number to the id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
