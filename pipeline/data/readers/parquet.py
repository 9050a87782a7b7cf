"""Parquet files, read in batches of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.readers.row_blocks import Block
from pipeline.data.rows import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import other_kind_of

# Of the text of a batch, and of what is read from the disk at a time.
_BATCH_BYTES, _READ_BYTES = 8 << 20, 1 << 20


class ParquetTable:
    """An open Parquet file."""

    def __init__(self, name: str, full: Path) -> None:
        self._name = name
        try:
            if (kind := other_kind_of(full)) is not None:
                raise UserError(f"{name}: is {kind}")
            # With a buffer, so that a large column chunk is not read into memory completely.
            self._file = pq.ParquetFile(full, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None
        self.schema: pa.Schema = self._file.schema_arrow
        self.columns = self.schema.names

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        before = 0
        try:
            for batch in self._file.iter_batches(self._batch_rows(), columns=list(dict.fromkeys(wanted))):
                columns = {column: batch.column(column) for column in wanted}
                yield Block(columns=columns, rows=batch.num_rows, before=before)
                before += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error, after=before) from None
        if before != self._file.metadata.num_rows:
            raise UserError(
                f"{self._name}: has {before} rows where its index says {self._file.metadata.num_rows}; write it again"
            )

    def _batch_rows(self) -> int:
        """Rows per batch; fewer if rows are long."""
        metadata = self._file.metadata
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        return max(1, min(BATCH_ROWS, _BATCH_BYTES * max(metadata.num_rows, 1) // max(size, 1)))

    def _damaged(self, error: Exception, after: int = 0) -> UserError:
        text = first_line(error)
        if "encrypt" in text.lower() or "decrypt" in text.lower():
            return UserError(f"{self._name}: is an encrypted Parquet file; write it again without encryption")
        where = f" after row {after}" if after else ""
        return UserError(
            f"{self._name}: cannot be read as Parquet{where} ({text}); it is damaged or cut short: get or write it again"
        )
