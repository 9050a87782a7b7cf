"""What a worker gets of a global batch."""

from __future__ import annotations

import numpy as np

from pipeline.step import share_of


def test_a_triplet_that_is_drawn_twice_is_no_negative_of_itself() -> None:
    # Rows 0 and 2 are one triplet; row 3 has its premise with another entailment.
    triplets = np.array([[1, 2, 3, -1], [4, 5, 6, -1], [1, 2, 3, -1], [1, 7, 3, -1]], dtype=np.int32)
    kept = share_of(triplets, "keep").hidden
    assert kept is not None
    assert np.argwhere(kept.numpy()).tolist() == [[0, 2], [2, 0]]
    masked = share_of(triplets, "mask").hidden
    assert masked is not None
    assert np.argwhere(masked.numpy()).tolist() == [[0, 2], [0, 3], [2, 0], [2, 3], [3, 0], [3, 2]]
    assert share_of(triplets[:2], "keep").hidden is None
