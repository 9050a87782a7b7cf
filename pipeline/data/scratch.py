"""A database beside the output, for grouping, joining and sorting more rows than memory holds.

Memory stays within `MEMORY` and what a batch takes, whatever the number of rows; the rest goes to files in the folder given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from pipeline.data.rows import BATCH_ROWS
from pipeline.errors import UserError

MEMORY = "256MB"
# More threads would want more memory for their own buffers; reading and writing the text take the longer part anyway.
THREADS = 2

# A commit that cannot be written comes as a transaction error; nobody else writes here that one could be in conflict with.
_NO_ROOM = (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.TransactionException, duckdb.FatalException)

Database = duckdb.DuckDBPyConnection


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    """A new database in `folder` (made, and left to the caller to remove).

    Raises:
        UserError: its files cannot be written, or sorting does not fit the memory it may take.
    """
    try:
        folder.mkdir(parents=True)
        connection = duckdb.connect(
            str(folder / "rows.duckdb"),
            config={
                "memory_limit": MEMORY,
                "threads": THREADS,
                "temp_directory": str(folder / "spill"),
                # Order is asked for where it matters; keeping it everywhere costs memory.
                "preserve_insertion_order": False,
            },
        )
        try:
            yield connection
        finally:
            connection.close()
    except _NO_ROOM as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise UserError(f"{folder}: sorting found no room ({reason}); make room on that disk and run again") from None
    except (RuntimeError, duckdb.InterruptException) as error:
        # What becomes of the KeyboardInterrupt of a signal that comes during a query.
        if isinstance(error, duckdb.InterruptException) or str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


def in_order(connection: Database, query: str) -> Iterator[pa.RecordBatch]:
    """Result of an ordered query, batch by batch, while the connection goes on to be used."""
    yield from connection.cursor().sql(query).to_arrow_reader(BATCH_ROWS)
