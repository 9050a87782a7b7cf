"""Checked columns of a scored table, and its pairs by label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.schema import ENTAILMENT, LABELS, NO_LABEL

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def numbers(table: pa.Table, name: str) -> Floats:
    """One column, (n,).

    Raises:
        ValueError: a value is not finite.
    """
    values = table.column(name).to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} values of {name} are not finite")
    return values


def entailments(table: pa.Table) -> dict[str, Floats]:
    """All columns, restricted to the pairs with gold label entailment."""
    entailed = numbers(table, "label") == ENTAILMENT
    return {name: numbers(table, name)[entailed] for name in table.column_names}


def by_label(table: pa.Table) -> list[tuple[str, Mask]]:
    """Each gold label that occurs, with the mask of its rows; usual order, pairs without a label last."""
    label = numbers(table, "label")
    return [(label_name(code), label == code) for code in (*range(len(LABELS)), NO_LABEL) if (label == code).any()]


def label_name(code: int) -> str:
    """The name of a label; "none" if there is no gold label."""
    return "none" if code == NO_LABEL else LABELS[code]
