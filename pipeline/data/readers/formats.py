"""A path → an open table, for a file of any supported format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pipeline.data.readers import infersent
from pipeline.data.readers.delimited import DelimitedTable
from pipeline.data.readers.infersent import InferSentTable
from pipeline.data.readers.jsonl import JsonTable
from pipeline.data.readers.opening import byte_blocks, detect, head, locate, stem, unpacked_file
from pipeline.data.readers.parquet import ParquetTable
from pipeline.data.readers.quotes import NO_FORM, Form
from pipeline.data.readers.row_blocks import Table
from pipeline.utils.errors import UserError


class Opened(NamedTuple):
    """An open file."""

    table: Table
    stem: str
    """The file's name in the `source` of its rows."""
    hint: str = ""
    """Text to add to the message if the layout is unknown."""


@contextmanager
def opened(root: Path, path: str, form: Form = NO_FORM) -> Iterator[Opened]:
    """The table of the file `path` under `root`.

    Raises:
        UserError: the file cannot be opened, its format is not supported, or `form` is of another format.
    """
    full = locate(root, path)
    with ExitStack() as stack:
        three = infersent.siblings(full)
        if three is not None:
            names = {column: str(PurePosixPath(path).with_name(file.name)) for column, file in three.items()}
            files = {column: locate(root, name) for column, name in names.items()}
            sources = {column: stack.enter_context(closing(byte_blocks(files[column], names[column]))) for column in names}
            _refuse(form, path, "an InferSent file")
            yield Opened(InferSentTable(names, sources, form), full.name.partition(".")[2])
            return
        kind = detect(head(full, path), path, form.separator)
        if kind in ("parquet", "jsonl"):
            _refuse(form, path, f"a {kind} file")
        if kind == "parquet":
            table = ParquetTable(path, stack.enter_context(unpacked_file(full, path)))
            stack.callback(table.close)
            yield Opened(table, stem(path))
            return
        blocks = stack.enter_context(closing(byte_blocks(full, path)))
        table = JsonTable(path, blocks) if kind == "jsonl" else DelimitedTable(path, blocks, kind, form)
        yield Opened(table, stem(path), infersent.missing(full))


def _refuse(form: Form, path: str, what: str) -> None:
    if form.separator or form.quotes == "csv":
        key = "separator" if form.separator else "quotes"
        raise UserError(f"{path}: is {what}, so {key} says nothing about it; remove it from params.yaml")
