"""A path → an open table, for a file of any supported format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pipeline.config.data_params import NO_FORM, TableSpec
from pipeline.data.readers import infersent
from pipeline.data.readers.delimited import DelimitedTable
from pipeline.data.readers.infersent import InferSentTable
from pipeline.data.readers.jsonl import JsonTable
from pipeline.data.readers.opening import byte_blocks, detect, head, locate, stem
from pipeline.data.readers.parquet import ParquetTable
from pipeline.data.readers.row_blocks import Table
from pipeline.utils.errors import UserError


class Opened(NamedTuple):
    """An open file."""

    table: Table
    stem: str
    """The file's name in the `source` of its rows."""
    hint: str = ""
    """Text to add to the message if the layout is unknown."""
    class_names: Mapping[str, Sequence[str]] = {}
    """Column → names of its numbers (the hub's ClassLabel)."""


@contextmanager
def opened(root: Path, path: str, form: TableSpec = NO_FORM) -> Iterator[Opened]:
    """The table of the file `path` under `root`.

    Raises:
        UserError: the file cannot be opened, its format is not supported, or `form` is of another format.
    """
    full = locate(root, path)
    with ExitStack() as stack:
        three = infersent.siblings(full)
        kind = "InferSent" if three else detect(head(full, path), path, form.separator)
        if len(kind) > 1 and (form.separator or form.quotes == "csv"):
            raise UserError(f"{path}: is {kind}, which has no such separator or quotes; remove them in params.yaml")
        if three is not None:
            names = {column: str(PurePosixPath(path).with_name(file.name)) for column, file in three.items()}
            files = {column: locate(root, name) for column, name in names.items()}
            sources = {column: stack.enter_context(closing(byte_blocks(files[column], names[column]))) for column in names}
            yield Opened(InferSentTable(names, sources, form), full.name.partition(".")[2])
            return
        if kind == "parquet":
            table = ParquetTable(path, full)
            stack.callback(table.close)
            yield Opened(table, stem(path))
            return
        blocks = stack.enter_context(closing(byte_blocks(full, path)))
        table = JsonTable(path, blocks) if kind == "jsonl" else DelimitedTable(path, blocks, kind, form)
        yield Opened(table, stem(path), infersent.missing(full))
