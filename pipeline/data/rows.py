"""The output of every reader: a source of rows that can be read in batches many times, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

BATCH_ROWS = 65_536
"""The most rows of a batch. Together with the length of sentences it bounds the memory for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one source, in schema `RAW_PAIRS` or `RAW_STS`; iterating reads the source."""

    name: str
    """Name of the source in messages and counts: the path from params.yaml, the name on the hub, or `generated`."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Opens the source again. Any batch may raise a `UserError` that names the source and the row (the first is 1)."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()
