"""A path → an open table, for a file of any supported format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config.data_params import NO_FORM, TableSpec
from pipeline.data.readers.opening import byte_blocks, detect, head, locate, stem
from pipeline.data.readers.row_blocks import Block, Table
from pipeline.data.readers.text_tables import csv_table, json_table
from pipeline.data.schema import BATCH_ROWS
from pipeline.data.text_column import is_text
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import other_kind_of

# Of the text of a batch, and of what is read from the disk at a time.
_BATCH_BYTES, _READ_BYTES = 8 << 20, 1 << 20


def open_table(root: Path, path: str, form: TableSpec = NO_FORM) -> Table:
    """The table of the file `path` under `root`.

    Raises:
        UserError: the file cannot be opened, its format is not supported, or `form` is of another format.
    """
    full = locate(root, path)
    kind = detect(head(full, path), path, form.separator)
    if len(kind) > 1 and (form.separator or form.quotes == "csv"):
        raise UserError(f"{path}: is {kind}, which has no such separator or quotes; remove them in params.yaml")
    if kind == "parquet":
        return _parquet_table(path, open_parquet_source(path, full))
    blocks = byte_blocks(full, path)
    table = json_table(path, blocks) if kind == "jsonl" else csv_table(path, blocks, kind, form)
    return replace(table, stem=stem(path))


def open_parquet_source(name: str, full: Path) -> pq.ParquetFile:
    """A Parquet file that this project did not write.

    Raises:
        UserError: it is not one, or damaged.
    """
    with _parquet_faults(name):
        if (kind := other_kind_of(full)) is not None:
            raise UserError(f"{name}: is {kind}")
        return _parquet(full, pq.read_metadata(full))


def _parquet(source: Path | pa.NativeFile, metadata: pq.FileMetaData) -> pq.ParquetFile:
    schema, shared = metadata.schema.to_arrow_schema(), _sharing(metadata)
    # With a buffer, so that a large column chunk is not read into memory completely. As dictionaries, because a few bytes can
    # stand for a long text in each of a million rows.
    return pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=[one.name for one in schema if is_text(one.type) and one.name not in shared],
        buffer_size=_READ_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,
    )


def groups_of(root: Path, path: str, rows: int) -> list[tuple[int, int]] | None:
    """The row groups (first, end) of a Parquet file, in runs of about so many rows; None for a file of another format.

    Raises:
        UserError: as `open_table`.
    """
    full = locate(root, path)
    if detect(head(full, path), path, None) != "parquet":
        return None
    before = np.cumsum([0, *_rows_of_groups(open_parquet_source(path, full))])
    borders = np.flatnonzero(np.diff(before[:-1] // rows)) + 1
    return [*pairwise([0, *borders.tolist(), len(before) - 1])]


def _rows_of_groups(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]


def open_groups(name: str, source: pa.NativeFile, groups: tuple[int, int]) -> Table:
    """Some row groups of a Parquet file.

    Args:
        name: the file's path, for messages and as the source of its rows.
        source: the file, open as long as the table is read.
        groups: the first of them, and the one behind the last.
    """
    return _parquet_table(name, _parquet(source, pq.read_metadata(source)), groups)


def _parquet_table(name: str, file: pq.ParquetFile, groups: tuple[int, int] | None = None) -> Table:
    metadata, rows_of = file.metadata, _rows_of_groups(file)
    first, stop = groups or (0, len(rows_of))
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        before = sum(rows_of[:first])
        # Fewer rows a batch if they are long, or may be. A row a batch would take too long.
        shared = max((longest for column, longest in _sharing(metadata).items() if column in wanted), default=1)
        batch_rows = min(BATCH_ROWS, _BATCH_BYTES * max(metadata.num_rows, 1) // max(size, 1), max(64, _BATCH_BYTES // shared))
        with _parquet_faults(name):
            for batch in file.iter_batches(max(1, batch_rows), row_groups=range(first, stop), columns=list(wanted)):
                for part in _parts(batch):
                    yield Block(columns={column: part.column(column) for column in wanted}, rows=part.num_rows, before=before)
                    before += part.num_rows
        if before != (expected := sum(rows_of[:stop])):
            raise UserError(f"{name}: has {before} rows where its index says {expected}; write it again")

    return Table(columns=file.schema_arrow.names, blocks=blocks, stem=stem(name))


def _sharing(metadata: pq.FileMetaData) -> dict[str, int]:
    """Columns whose rows hold only what is new since the row before, and the most bytes that such a row can have."""
    found: dict[str, int] = {}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if "DELTA_BYTE_ARRAY" in column.encodings:
                name = column.path_in_schema
                found[name] = max(found.get(name, 1), column.total_uncompressed_size)
    return found


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices whose text has about `_BATCH_BYTES` once each row holds its own."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and is_text(column.type):
            lengths = pc.binary_length(column.dictionary.cast(pa.large_binary()))
            sizes += pc.fill_null(lengths.take(column.indices), 0).to_numpy(zero_copy_only=False)
    ends = np.flatnonzero(np.diff(np.cumsum(sizes) // _BATCH_BYTES)) + 1
    for start, stop in pairwise([0, *ends.tolist(), batch.num_rows]):
        yield batch.slice(start, stop - start)


@contextmanager
def _parquet_faults(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # Of a storage, which may answer the next time.
        if "AWS Error" in str(error):
            raise
        raise UserError(f"{name}: cannot be read as Parquet ({first_line(error)}); get or write it again") from None
