"""Why a row is dropped, as far as the row itself says. What hangs on other rows is decided in `ledger`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.schema import NO_LABEL

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
"""Why a row is dropped, in the order of the tests: a row has the first that fits. Its code is the position plus one."""
HELD_OUT_REASONS = REASONS[:3]
"""All that is dropped from development and test sets: they stay complete, to compare with published figures."""
NOT_SELECTED, NO_GOLD_LABEL, EMPTY, DUPLICATE, CONTRADICTORY, LEAKED_PAIR, LEAKED_PREMISE = range(1, len(REASONS) + 1)

Reasons = npt.NDArray[np.int8]


def own_reasons(batch: pa.RecordBatch, first: str, second: str, labelled: npt.NDArray[np.bool_]) -> Reasons:
    """(n,) `KEPT` or the reason code of every row, by what stands in the row.

    Args:
        batch: n rows of a reader.
        first: text column.
        second: the other one.
        labelled: (n,) whether there is a gold label or score.
    """
    empty = pc.or_(pc.equal(batch[first], ""), pc.equal(batch[second], "")).to_numpy(zero_copy_only=False)
    selected = batch["selected"].to_numpy(zero_copy_only=False)
    return np.select([~selected, ~labelled, empty], [NOT_SELECTED, NO_GOLD_LABEL, EMPTY], KEPT).astype(np.int8)


def has_label(label: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """(n,) whether a label code is a gold label."""
    return label != NO_LABEL


def tally(reason: Reasons) -> npt.NDArray[np.int64]:
    """(len(REASONS) + 1,) rows by reason code, the kept ones first."""
    return np.bincount(reason, minlength=len(REASONS) + 1)


def by_reason(counts: npt.NDArray[np.int64], names: Sequence[str] = REASONS) -> dict[str, int]:
    """Rows dropped by reason, of a `tally` or a sum of some."""
    return {name: int(number) for name, number in zip(names, counts[1:], strict=False)}
