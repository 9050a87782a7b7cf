"""Drop reasons that need one row only; cross-row checks are in `dedup`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.schema import NO_LABEL

_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_ZERO_WIDTH = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
STRIPPED = _WHITE + _ZERO_WIDTH
"""Invisible characters, removed at both ends of a sentence; a sentence of nothing else is empty."""
KEPT = 0
REASONS = (
    "not_selected",
    "no_gold_label",
    "empty",
    "duplicate",
    "contradictory_labels",
    "leaked_pair",
    "leaked_premise",
)
"""Drop reasons in the order of the tests; a row gets the first that applies. The code of a reason is its position plus one."""
HELD_OUT_REASONS = REASONS[:3]
"""The only reasons for development and test sets: these stay complete otherwise, to compare with published figures."""
NOT_SELECTED, NO_GOLD_LABEL, EMPTY, DUPLICATE, CONTRADICTORY, LEAKED_PAIR, LEAKED_PREMISE = range(1, len(REASONS) + 1)

Reasons = npt.NDArray[np.int8]


def is_empty(text: str) -> bool:
    """True if a text is empty or has only characters of `STRIPPED`, so that no model can say anything about it."""
    return not text.strip(STRIPPED)


def own_reasons(batch: pa.RecordBatch, first: str, second: str, labelled: npt.NDArray[np.bool_]) -> Reasons:
    """(n,) `KEPT` or the reason code of every row, from the content of the row alone.

    Args:
        batch: n rows of a reader.
        first: one text column.
        second: the other text column.
        labelled: (n,) true if the row has a gold label or score.
    """
    empty = pc.or_(pc.equal(batch[first], ""), pc.equal(batch[second], "")).to_numpy(zero_copy_only=False)
    selected = batch["selected"].to_numpy(zero_copy_only=False)
    return np.select([~selected, ~labelled, empty], [NOT_SELECTED, NO_GOLD_LABEL, EMPTY], KEPT).astype(np.int8)


def has_label(label: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """(n,) true where a label code is a gold label."""
    return label != NO_LABEL


def tally(reason: Reasons) -> npt.NDArray[np.int64]:
    """(len(REASONS) + 1,) number of rows by reason code, starting with the kept rows."""
    return np.bincount(reason, minlength=len(REASONS) + 1)


def by_reason(counts: npt.NDArray[np.int64], names: Sequence[str] = REASONS) -> dict[str, int]:
    """Number of dropped rows by reason, from a `tally` or a sum of tallies."""
    return {name: int(number) for name, number in zip(names, counts[1:], strict=False)}
