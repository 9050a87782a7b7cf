"""Columns of a scored table, checked, and its pairs by label and by what they are called."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.schema import ENTAILMENT, LABELS, NO_LABEL
from pipeline.metrics import EntailmentIf

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
    """All columns of the pairs whose gold label is entailment."""
    entailed = numbers(table, "label") == ENTAILMENT
    return {name: numbers(table, name)[entailed] for name in table.column_names}


def by_label(table: pa.Table) -> list[tuple[str, Mask]]:
    """The gold labels that there are, in their usual order and a missing one last, each with its rows."""
    label = numbers(table, "label")
    return [(label_name(code), label == code) for code in (*range(len(LABELS)), NO_LABEL) if (label == code).any()]


def label_name(code: int) -> str:
    """A label as people read it; "none" where there is no gold label."""
    return "none" if code == NO_LABEL else LABELS[code]


def called_entailment(score: Floats, threshold: float, entailment_if: EntailmentIf) -> Mask:
    """(n,), true where a pair is called entailment, as `metrics.accuracy_at` calls it."""
    return score >= threshold if entailment_if == ">=" else score > threshold
