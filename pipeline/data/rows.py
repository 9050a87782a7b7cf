"""What every reader gives: a source of rows that is read in batches, as often as it is asked, in the same order each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

BATCH_ROWS = 65_536
"""Most rows of a batch; with the length of a sentence it bounds what reading holds in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one source, schema `RAW_PAIRS` or `RAW_STS`; iterating reads it."""

    name: str
    """The path as params.yaml has it, or the hub's name, or `generated`; names the rows in messages and counts."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Opens the source anew. A `UserError` that names the source and the row (the first is 1) may come with any batch."""
    both_ways: bool = False
    """Whether the source also has the label of the pair read the other way round (else `reverse_label` is `NO_LABEL`)."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()
