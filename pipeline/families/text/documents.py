"""Running text: documents, each a list of sentences in order, from text files, folders of them, and tables with a text column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from syntok import segmenter

from pipeline.config.data_params import NO_FORM, TableSpec
from pipeline.data.cleaning import is_empty
from pipeline.data.readers.columns import require_columns, text_of
from pipeline.data.readers.formats import open_table
from pipeline.data.readers.opening import MOST_CHARACTERS, byte_blocks, head, lines
from pipeline.data.readers.row_blocks import reading
from pipeline.utils.errors import UserError
from pipeline.utils.file_kinds import other_kind_of

TEXT_FILES = (".txt", ".txt.gz", ".txt.bz2", ".txt.xz", ".txt.zst")


@dataclass(frozen=True, slots=True)
class Document:
    """A text that somebody wrote as one: a book, an article, a review."""

    name: str
    """For messages: the file, with its row or the value of its document column if the file has several documents."""
    sentences: list[str]
    """In order. White space within a sentence is one space. Possibly empty."""


def read_documents(
    paths: Iterable[Path], *, text: str = "text", document: str | None = None, form: TableSpec = NO_FORM
) -> Iterator[Document]:
    """The documents of files, one at a time.

    A text file (`TEXT_FILES`) is one document. If its first megabyte has an empty line between two others, empty lines end its
    paragraphs, and other line breaks are spaces. Otherwise every line is a paragraph. No sentence goes beyond its paragraph. A
    folder means all text files in it, sorted by path. Any other file is a table (Parquet, csv, jsonl) in which every row
    is a document, whose paragraphs are found in the same way.

    Args:
        text: the column of a table that has the text.
        document: a column whose value, in consecutive rows, makes these rows the paragraphs of one document.

    Raises:
        UserError: a file cannot be read or lacks a column; a text is missing; a paragraph is too long; a folder has no text file;
            rows of one document are not together.
    """
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and _is_text_file(file))
            if not files:
                raise UserError(f"{path}: has no text file ({', '.join(TEXT_FILES)}); name a table by its own path")
            for file in files:
                if (kind := other_kind_of(file)) is not None:
                    raise UserError(f"{file}: is {kind}")
            yield from map(_text_file, files)
        elif _is_text_file(path):
            yield _text_file(path)
        else:
            yield from _table(path, text, document, form)


def sentences_of(paragraph: str) -> list[str]:
    """The sentences of a paragraph, by syntok. White space within each becomes one space."""
    paragraph = " ".join(paragraph.split())
    sentences = [
        paragraph[tokens[0].offset : tokens[-1].offset + len(tokens[-1].value)]
        for part in segmenter.analyze(paragraph)
        for tokens in part
    ]
    return [sentence for sentence in sentences if not is_empty(sentence)]


def _is_text_file(path: Path) -> bool:
    return path.name.lower().endswith(TEXT_FILES)


def _text_file(path: Path) -> Document:
    name = str(path)
    with reading(name):
        wrapped = _has_gap(head(path, name).split(b"\n"))
        return Document(name, _sentences(lines(byte_blocks(path, name)), wrapped, name))


def _sentences(text_lines: Iterable[str], wrapped: bool, where: str) -> list[str]:
    sentences: list[str] = []
    for paragraph in _paragraphs(text_lines) if wrapped else text_lines:
        if len(paragraph) > MOST_CHARACTERS:
            raise UserError(
                f"{where}: a paragraph of more than {MOST_CHARACTERS:,} characters; divide it by line breaks or empty lines"
            )
        sentences.extend(sentences_of(paragraph))
    return sentences


def _has_gap(text_lines: Sequence[str] | Sequence[bytes]) -> bool:
    """Whether an empty line is between two others."""
    filled = [number for number, line in enumerate(text_lines) if line.strip()]
    return bool(filled) and filled[-1] - filled[0] >= len(filled)


def _paragraphs(text_lines: Iterable[str]) -> Iterator[str]:
    gathered: list[str] = []
    size = 0
    for line in chain(text_lines, ("",)):
        # What is too long is given back at once, and refused, not kept in memory to its end.
        if line.strip() and size <= MOST_CHARACTERS + 1:
            gathered.append(line)
            size += len(line) + 1
        elif gathered:
            yield " ".join(gathered)
            gathered, size = [], 0


def _table(path: Path, text: str, document: str | None, form: TableSpec) -> Iterator[Document]:
    name = str(path)
    ended: set[str] = set()
    for key, group in groupby(_rows(name, path, text, document, form), itemgetter(0)):
        rows = list(group)
        if document is not None and key in ended:
            raise UserError(f"{name}: {rows[0][1]}: {document} {key} had ended before; put the rows of a document together")
        yield Document(f"{name}: {key}", [sentence for *_, sentences in rows for sentence in sentences])
        if document is not None:
            ended.add(key)


def _rows(name: str, path: Path, text: str, document: str | None, form: TableSpec) -> Iterator[tuple[str, str, list[str]]]:
    """Of each row: the value of its document column, or its place if there is none; its place; its sentences."""
    wanted = [text] if document is None else [text, document]
    with reading(name):
        table = open_table(path.parent, path.name, form)
        require_columns(name, wanted, table.columns)
        for block in table.blocks(wanted):
            keys = [""] * block.rows if document is None else text_of(name, block, document, or_numbers=True).to_pylist()
            for row, (value, key) in enumerate(zip(text_of(name, block, text).to_pylist(), keys, strict=True)):
                place = block.place(row)
                for column, missing in ((text, value is None), (document, document is not None and not key)):
                    if missing:
                        raise UserError(f"{name}: {place}: {column} is missing; fill it in, or leave the row out")
                text_lines = value.split("\n")
                yield key or place, place, _sentences(text_lines, _has_gap(text_lines), f"{name}: {place}")
