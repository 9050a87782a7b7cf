"""The share of pairs of one premise or document in the batches, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.report.writing import same_source


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "pairs", "shown"),
    [
        # Batches of 3 and 2 rows of one document: 3 · 2 + 2 · 1 pairs, in each of two epochs.
        (5, 3, 2, 16, "16 (100.0 %)"),
        # Two batches of 4, each of two documents of two sentences: 4 of 12 pairs.
        (8, 4, 1, 8, "8 (33.3 %)"),
        (8, 4, 0, 0, "0"),
        # A batch of one row has no pairs.
        (1, 4, 1, 0, "0 (0.0 %)"),
    ],
)
def test_the_share_is_exact(rows: int, batch_size: int, epochs: int, pairs: int, shown: str) -> None:
    steps = epochs * -(-rows // batch_size)
    seed: Any = SimpleNamespace(rows=rows, total_steps=steps, same_source_pairs=pairs)
    recipe: Any = SimpleNamespace(choice=SimpleNamespace(batch_size=batch_size))
    assert same_source(seed, recipe) == shown
