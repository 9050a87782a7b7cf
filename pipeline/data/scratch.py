"""A database on disk for grouping, joining and sorting more rows than fit into memory.

It uses at most `MEMORY` plus one batch, whatever the number of rows. All else goes to files in the given folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from pipeline.data.rows import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line

MEMORY = "256MB"
# More threads would need more memory for buffers, and most of the time goes into reading and writing text anyway.
THREADS = 2
# Rows that `by_hash` sorts at a time.
_PIECE = 400_000

# A commit that cannot be written raises TransactionException. A real conflict is impossible: there is no other writer.
_FAULTS = (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.TransactionException, duckdb.FatalException)

Database = duckdb.DuckDBPyConnection


@contextmanager
def database(folder: Path, memory: str = MEMORY, threads: int = THREADS) -> Iterator[Database]:
    """A new database in `folder`, which is created here and must be removed by the caller.

    Args:
        memory: the most it uses; what does not fit is on the disk.
        threads: of its queries; each needs some of the memory.

    Raises:
        UserError: the files cannot be written, or sorting needs more memory than allowed.
    """
    try:
        folder.mkdir(parents=True)
        connection = duckdb.connect(
            str(folder / "rows.duckdb"),
            config={
                "memory_limit": memory,
                "threads": threads,
                "temp_directory": str(folder / "spill"),
                # Queries ask for an order if it matters; keeping it everywhere would cost memory.
                "preserve_insertion_order": False,
            },
        )
        try:
            yield connection
        finally:
            connection.close()
    except _FAULTS as error:
        raise UserError(f"{folder}: {_cannot_sort(error)}") from None
    except (RuntimeError, duckdb.InterruptException) as error:
        # A signal during a query arrives as one of these instead of KeyboardInterrupt.
        if isinstance(error, duckdb.InterruptException) or str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


def insert(connection: Database, table: str, select: str, rows: pa.Table) -> None:
    """Add `select` of `rows` to a table."""
    connection.register("rows", rows)
    connection.execute(f"INSERT INTO {table} SELECT {select} FROM rows")
    connection.unregister("rows")


def in_order(connection: Database, query: str) -> Iterator[pa.RecordBatch]:
    """The result of an ordered query in batches; the connection can be used for other queries meanwhile.

    Raises:
        UserError: as `database`.
    """
    try:
        yield from connection.cursor().sql(query).to_arrow_reader(BATCH_ROWS)
    except OSError as error:
        # What DuckDB raises while Arrow reads from it.
        raise _cannot_sort(error) from None


def by_hash(connection: Database, select: str, key: str, rest: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a table in the order of a column of hashes, however many there are.

    One range of hashes after the other is sorted, because even sorting on disk needs more memory for more rows.

    Args:
        select: the query, without conditions.
        key: the column of hashes, 64 bits.
        rest: the order of rows with the same hash.
        rows: how many rows the table has.
    """
    pieces = 1 + rows // _PIECE
    for piece in range(pieces):
        lowest, end = (part * 2**64 // pieces for part in (piece, piece + 1))
        yield from in_order(connection, f"{select} WHERE {key} BETWEEN {lowest} AND {end - 1} ORDER BY {key}, {rest}")


def _cannot_sort(error: Exception) -> UserError:
    return UserError(f"cannot sort the rows ({first_line(error)}); if the disk is full, free some space and run again")
