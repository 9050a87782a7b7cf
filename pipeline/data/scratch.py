"""A database on disk for grouping, joining and sorting more rows than fit into memory.

It uses a bounded memory plus one batch, whatever the number of rows. All else goes to files in the given folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from pipeline.data.schema import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line

# A commit that cannot be written raises TransactionException. A real conflict is impossible: there is no other writer.
_FAULTS = (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.TransactionException, duckdb.FatalException)

Database = duckdb.DuckDBPyConnection


@contextmanager
def database(folder: Path, memory: str = "256MB", threads: int = 2) -> Iterator[Database]:
    """A new database in `folder`, which is created here and must be removed by the caller.

    Args:
        memory: the most it uses; what does not fit is on the disk.
        threads: of its queries; each needs memory for buffers, and most of the time goes into reading and writing text anyway.

    Raises:
        UserError: the files cannot be written, or sorting needs more memory than allowed.
    """
    try:
        folder.mkdir(parents=True)
        # Queries ask for an order if it matters; keeping it everywhere would cost memory.
        config = {"memory_limit": memory, "threads": threads, "preserve_insertion_order": False}
        config["temp_directory"] = str(folder / "spill")
        with duckdb.connect(str(folder / "rows.duckdb"), config=config) as connection:
            yield connection
    except _FAULTS as error:
        raise UserError(f"{folder}: {_cannot_sort(error)}") from None
    except (RuntimeError, duckdb.InterruptException) as error:
        # A signal during a query arrives as one of these instead of KeyboardInterrupt.
        if isinstance(error, duckdb.InterruptException) or str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


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


def quoted(path: Path) -> str:
    """A path as a text of SQL."""
    return f"""'{str(path).replace("'", "''")}'"""


def _cannot_sort(error: Exception) -> UserError:
    return UserError(f"cannot sort the rows ({first_line(error)}); if the disk is full, free some space and run again")
