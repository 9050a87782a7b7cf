"""Rows and batches of triplets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from conftest import PLAIN
from store import make_store

from pipeline.config.load import load_params
from pipeline.data.token_store import open_store, read_rows
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import triplet_batch


def test_only_mask_hides_the_entailments_of_a_row_s_own_premise() -> None:
    # Rows 0, 2 and 3 have one premise.
    triplets = np.array([[1, 2, 3, -1], [4, 5, 6, -1], [1, 8, 3, -1], [1, 7, 3, -1]], dtype=np.int32)
    objective = make_objective("ent+con+rev", "kl", 0.05)
    assert triplet_batch(objective, triplets, "keep").hidden == {}
    masked = triplet_batch(objective, triplets, "mask").hidden["E"]
    assert np.argwhere(masked.numpy()).tolist() == [[0, 2], [0, 3], [2, 0], [2, 3], [3, 0], [3, 2]]


def test_pairs_that_hold_both_ways_are_no_negatives_in_reverse(tmp_path: Path) -> None:
    # Rows 1 and 3 hold both ways. Row 0 has the premise of row 1, and the premise of row 2 is the entailment of row 3.
    triplets = [(1, 2, 9), (1, 3, 9), (4, 5, 9), (6, 4, 9), (7, 8, 9)]
    store = make_store(tmp_path / "s", [[2, 5, 3]] * 10, triplets=triplets, numbers={"triplets": {"two_way": [0, 1, 0, 1, 0]}})
    objective, train = make_objective("ent+con+rev", "kl", 0.05), load_params(PLAIN).train
    batches = objective.batches(read_rows(store, "triplets"), open_store(store), train, 5, 1)
    hidden = {(batches.rows(0)[i], batches.rows(0)[j]) for i, j in np.argwhere(batches.batch(0).hidden["R"].numpy())}
    assert hidden == {(1, 0), (1, 1), (3, 2), (3, 3)}


def test_rows_are_named_as_they_stand_in_the_file(tmp_path: Path) -> None:
    # Rows 1 and 2 have no contradiction and are not trained on.
    triplets = [(0, 1, 2), (0, 1, -1), (3, 1, -1), (3, 4, 2)]
    store = make_store(tmp_path / "s", [[2, 5, 3]] * 5, triplets=triplets)
    objective, train = make_objective("ent+con+rev", "kl", 0.05), load_params(PLAIN).train
    for which, expected in (("with-contradiction", [0, 3]), ("all", [0, 1, 2, 3])):
        given = train.model_copy(update={"triplets": which})
        batches = objective.batches(read_rows(store, "triplets"), open_store(store), given, 4, 1)
        rows = batches.rows(0)
        assert sorted(rows.tolist()) == expected and len(batches) == len(expected)
        assert np.column_stack(batches.batch(0).sentences).tolist() == [list(triplets[row]) for row in rows]
