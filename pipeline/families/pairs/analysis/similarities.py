"""Distributions of sim(h‖p) and sim(p‖h) for each gold label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.families.pairs.analysis.columns import Mask, by_label, numbers


@dataclass(frozen=True, slots=True)
class LabelHistogram:
    """Histograms of the pairs of one gold label: a count for each bin of `SimilarityByLabel.edges`, including empty bins."""

    label: str
    pairs: int
    sim_hp: tuple[int, ...]
    """sim(h‖p), the score of "premise entails hypothesis"."""
    sim_ph: tuple[int, ...]
    """sim(p‖h), the score of the reverse."""


@dataclass(frozen=True, slots=True)
class SimilarityByLabel:
    """Histograms over bins of equal width in [0, 1]. A value on an edge belongs to the bin above, 1 to the last bin."""

    edges: tuple[float, ...]
    """Edges of the bins, one more than bins."""
    labels: tuple[LabelHistogram, ...]


def similarity_by_label(table: pa.Table, bins: int = 20) -> SimilarityByLabel | None:
    """Histograms of both similarities for each gold label; None if the table has no variances."""
    if "sim_hp" not in table.column_names:
        return None
    edges = np.arange(bins + 1) / bins

    def counts(name: str, rows: Mask) -> tuple[int, ...]:
        place = np.searchsorted(edges[1:-1], numbers(table, name)[rows], side="right")
        return tuple(np.bincount(place, minlength=bins).tolist())

    labels = tuple(
        LabelHistogram(name, int(rows.sum()), counts("sim_hp", rows), counts("sim_ph", rows)) for name, rows in by_label(table)
    )
    return SimilarityByLabel(tuple(edges.tolist()), labels)
