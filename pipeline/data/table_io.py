"""Tables on disk: replace several outputs together; write Parquet and Arrow files with reproducible bytes."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.utils.atomic_io import room_for, sha256_file
from pipeline.utils.errors import UserError

# Rows of a Parquet row group: some megabytes of sentences, a good task for one of many readers. Affects the bytes of the file.
ROW_GROUP = 131_072


@contextmanager
def all_or_nothing(parent: Path, names: Sequence[str]) -> Generator[Path, None, None]:
    """Yield an empty folder inside `parent`. At the end each of `names` in that folder replaces `parent/name`, in order.

    If the body raises an error, `parent` keeps its old content. The working folder has a fixed name, so the next run removes the
    remains of a killed run.

    Raises:
        UserError: `parent` cannot be written, or another run is writing there.
        FileNotFoundError: the body did not create one of `names`.
    """
    work = parent / ".partial"
    with ExitStack() as stack:
        try:
            work.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((work / "lock").open("a", encoding="utf-8"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in work.iterdir():
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
            for name in ("old", "new"):
                (work / name).mkdir()
        except BlockingIOError:
            raise UserError(f"{parent}: another run is writing there; wait until it has ended, and run again") from None
        except OSError as error:
            raise UserError(f"{parent}: cannot be written: {error.strerror}; make it a writable folder") from None
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        with room_for(parent):
            yield work / "new"
        for name in names:
            if not (work / "new" / name).exists():
                raise FileNotFoundError(work / "new" / name)
        for name in names:
            if (parent / name).exists():
                (parent / name).rename(work / "old" / name)
            (work / "new" / name).rename(parent / name)


class ParquetFile:
    """A writer of a Parquet file; equal rows give equal bytes, however they are divided into batches.

    Use it as a context manager. It holds one row group in memory.

    Args:
        group: rows of a row group.
    """

    def __init__(self, path: Path, schema: pa.Schema, group: int = ROW_GROUP) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self._group = group
        self._schema = schema
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=False)

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows; columns outside the schema are left out."""
        table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
        self._held.append(table.select(self._schema.names).replace_schema_metadata(None).cast(self._schema))
        self._held_rows += table.num_rows
        self.rows += table.num_rows
        while self._held_rows >= self._group:
            whole = pa.concat_tables(self._held)
            self._write(whole.slice(0, self._group))
            self._held, self._held_rows = [whole.slice(self._group)], self._held_rows - self._group

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._held_rows:
                self._write(pa.concat_tables(self._held))
        finally:
            self._writer.close()

    def _write(self, group: pa.Table) -> None:
        # Combine the chunks: their borders depend on the input batches and would show in the pages.
        self._writer.write_table(group.combine_chunks())


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file to read batch by batch. With pyarrow's default, everything read would stay in memory."""
    return pq.ParquetFile(path, pre_buffer=False)


class Column:
    """A column, of text unless another type is given, that arrives in batches and is taken in pieces of other lengths."""

    def __init__(self, batches: Iterator[pa.RecordBatch], name: str, kind: pa.DataType | None = None) -> None:
        self._chunks = (batch[name] for batch in batches)
        self._rest = pa.array([], kind or pa.string())

    def take(self, length: int) -> pa.ChunkedArray:
        """The next `length` values."""
        parts: list[pa.Array] = []
        for chunk in chain([self._rest], self._chunks):
            parts.append(chunk.slice(0, length))
            self._rest = chunk.slice(length)
            length -= len(parts[-1])
            if not length:
                break
        return pa.chunked_array(parts)


def write_batches(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches, at least one, as an uncompressed Arrow IPC file, which can be memory-mapped."""
    rest = iter(batches)
    first = next(rest)
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.schema, options=options) as writer:
        for batch in chain([first], rest):
            writer.write_batch(batch)


def sha256_tree(root: Path, pattern: str = "*") -> dict[str, str]:
    """{path relative to `root`: SHA-256} of every file below `root` whose name matches `pattern`, sorted by path."""
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob(pattern) if path.is_file())
    return {name: sha256_file(root / name) for name in files}
