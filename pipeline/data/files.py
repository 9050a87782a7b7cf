"""Tables on disk: several outputs replaced together, and Parquet and Arrow settings that fix the bytes."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.files import sha256_file

# Rows of one Parquet row group. It bounds the memory of a cast, and decides the bytes of the file.
ROW_GROUP = 131_072
# Spelled out, not left to the library's defaults, so that the bytes change only with the library itself.
PARQUET_SETTINGS: Mapping[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "version": "2.6",
    "data_page_version": "1.0",
    "use_dictionary": True,
    "write_statistics": True,
    "store_schema": False,
}


@contextmanager
def all_or_nothing(parent: Path, names: Sequence[str]) -> Generator[Path, None, None]:
    """Yield an empty folder inside `parent`; each of `names` made in it replaces `parent/name` at the end, in order.

    If the body raises, `parent` keeps what it had. The working folder has a fixed name, so that a killed run leaves
    nothing that the next one does not clear away; two runs into the same `parent` at once are not supported (DVC locks
    its stages).

    Raises:
        UserError: `parent` cannot be written.
        FileNotFoundError: the body did not make one of `names`.
    """
    work = parent / ".partial"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        (work / "old").mkdir(parents=True)
        (work / "new").mkdir()
    except OSError as error:
        raise UserError(f"{parent}: cannot be written: {error.strerror}; make it a writable folder") from None
    try:
        yield work / "new"
        for name in names:
            if not (work / "new" / name).exists():
                raise FileNotFoundError(work / "new" / name)
        for name in names:
            if (parent / name).exists():
                (parent / name).rename(work / "old" / name)
            (work / "new" / name).rename(parent / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_parquet(table: pa.Table, schema: pa.Schema, path: Path) -> None:
    """Write the columns of `schema` as Parquet; equal tables give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = table.select(schema.names).replace_schema_metadata(None)
    with pq.ParquetWriter(path, schema, **PARQUET_SETTINGS) as writer:
        for start in range(0, table.num_rows, ROW_GROUP):
            # Combined, because chunk borders (which depend on how the input was chunked) would show in the pages.
            writer.write_table(table.slice(start, ROW_GROUP).combine_chunks().cast(schema))


def write_arrow(columns: Mapping[str, pa.Array], path: Path) -> None:
    """Write `columns` as one uncompressed record batch in the Arrow IPC file format, to be mapped into memory."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def sha256_tree(root: Path, pattern: str = "*") -> dict[str, str]:
    """`{path relative to root: SHA-256}` of every file below `root` whose name matches, sorted by path."""
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob(pattern) if path.is_file())
    return {name: sha256_file(root / name) for name in files}
