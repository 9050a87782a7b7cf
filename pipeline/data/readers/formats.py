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
from pipeline.data.readers.row_blocks import Table


class Opened(NamedTuple):
    """An open file."""

    table: Table
    stem: str
    """The file's name in the `source` of its rows."""
    hint: str = ""
    """Text to add to the message if the layout is unknown."""


@contextmanager
def opened(root: Path, path: str) -> Iterator[Opened]:
    """The table of the file `path` under `root`.

    Raises:
        UserError: the file cannot be opened, or its format is not supported.
    """
    full = locate(root, path)
    with ExitStack() as stack:
        three = infersent.siblings(full)
        if three is not None:
            names = {column: str(PurePosixPath(path).with_name(file.name)) for column, file in three.items()}
            files = {column: locate(root, name) for column, name in names.items()}
            sources = {column: stack.enter_context(closing(byte_blocks(files[column], names[column]))) for column in names}
            yield Opened(InferSentTable(names, sources), full.name.partition(".")[2])
            return
        kind = detect(head(full, path), path)
        if kind == "parquet":
            table = ParquetTable(path, stack.enter_context(unpacked_file(full, path)))
            stack.callback(table.close)
            yield Opened(table, stem(path))
            return
        blocks = stack.enter_context(closing(byte_blocks(full, path)))
        table = JsonTable(path, blocks) if kind == "jsonl" else DelimitedTable(path, blocks, tabs=kind == "tsv")
        yield Opened(table, stem(path), infersent.missing(full))
