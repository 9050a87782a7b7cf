"""The training rows between the two passes of stage prepare: from the sources to those that are kept, with their partners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data import cleaning, schema
from pipeline.data.dedup import Ledger
from pipeline.data.table_io import Column, open_parquet

_TEXT = pa.schema([("row", pa.int64()), *schema.RAW_PAIRS])
KEPT_ROWS = pa.schema(
    [
        ("row", pa.int64()),
        *((name, schema.RAW_PAIRS.field(name).type) for name in ("premise", "hypothesis", "label", "reverse_label")),
    ]
    + [(name, pa.string()) for name in ("source", *schema.LABELS[1:])]
)
"""Kept rows: a row's number, its pair, and for an entailment the neutral and the contradiction that its triplet gets, or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What was decided on the training rows."""

    tallies: Sequence[npt.NDArray[np.int64]]
    """For each source, its rows by reason code (`pipeline.data.cleaning.tally`)."""
    labels: Mapping[str, int]
    """Kept rows by label."""
    kept: Callable[[], Iterable[pa.RecordBatch | pa.Table]]
    """The kept rows in order (`KEPT_ROWS`)."""
    counts: Callable[[], Mapping[str, int]]
    """`Ledger.train_counts`, once `kept` was read."""


class TextFile:
    """The text of training rows, which are numbered in the order written. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._writer = pq.ParquetWriter(path, _TEXT, compression="lz4", use_dictionary=False)

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows (`RAW_PAIRS`)."""
        row = pa.array(np.arange(self.rows, self.rows + batch.num_rows))
        self._writer.write_table(pa.table([row, *batch.columns], schema=_TEXT))
        self.rows += batch.num_rows

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def without_own_reasons(rows: Iterable[pa.RecordBatch], counts: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """First pass: the rows without a drop reason of their own; adds the dropped ones to `counts`, by reason code."""
    for batch in rows:
        reason = cleaning.own_reasons(batch, "premise", "hypothesis", batch["label"].to_numpy() != schema.NO_LABEL)
        counts[1:] += cleaning.tally(reason)[1:]
        yield batch.filter(pa.array(reason == cleaning.KEPT))


def kept_rows(text: Path, reason: cleaning.Reasons, ledger: Ledger) -> Iterator[pa.RecordBatch]:
    """Second pass: the kept rows in order (`KEPT_ROWS`).

    Args:
        text: what `TextFile` wrote.
        reason: (n,) of the same rows.
    """
    ledger.match()
    back = ledger.entailed_back()
    partners = {
        schema.LABELS[code]: Column(ledger.partners(code, text), "partner") for code in (schema.NEUTRAL, schema.CONTRADICTION)
    }
    with open_parquet(text) as source:
        for batch in source.iter_batches(schema.BATCH_ROWS):
            batch = batch.filter(pa.array(reason[batch["row"].to_numpy()] == cleaning.KEPT))
            batch = with_reverse(batch, back[batch["row"].to_numpy()])
            entailed = batch["label"].to_numpy() == schema.ENTAILMENT
            place = pa.array(np.cumsum(entailed) - 1, mask=~entailed)
            for name, column in partners.items():
                own = column.take(int(entailed.sum())).combine_chunks()
                batch = batch.append_column(name, own.take(place))
            yield batch.select(KEPT_ROWS.names)


def with_reverse(batch: pa.RecordBatch, back: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The batch; where its source says nothing of a pair turned round, with what its set says (`Ledger.entailed_back`)."""
    given = batch["reverse_label"].to_numpy()
    return with_codes(batch, "reverse_label", np.where((given == schema.NO_LABEL) & back, schema.ENTAILMENT, given))


def with_codes(batch: pa.RecordBatch, column: str, codes: npt.NDArray[Any]) -> pa.RecordBatch:
    """The batch with a column of label codes replaced."""
    return batch.set_column(batch.schema.get_field_index(column), column, pa.array(codes, pa.int8()))
