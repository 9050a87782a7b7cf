"""The worst pairs and the counts of right and wrong decisions, by hand and against each other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline.evaluation import metrics
from pipeline.families.pairs.analysis import (
    Called,
    confusion,
    worst_over_seeds,
)
from tests.evaluation.tables import VARIANCES, random_table, scored


def rows(pairs: Any) -> list[int]:
    return [pair.row for pair in pairs]


def test_worst_pairs_by_hand() -> None:
    # Rows        0    1    2    3    4    5    6
    # label       e    n    c    e    n    e    e
    # score      .3   .9   .9   .6   .95  .3   .1     threshold 0.6
    # sim(p‖h)   .4   .1   .1   .5   .1   .7   .9     so .1 wrong, –, –, .1 right, –, .4 wrong, .8 but two-way
    table = scored(
        label=[0, 1, 2, 0, 1, 0, 0],
        reverse_label=[1, 1, 1, 1, 1, -1, 0],
        premise_tokens=[5, 6, 7, 8, 9, 10, 11],
        score=[0.3, 0.9, 0.9, 0.6, 0.95, 0.3, 0.1],
        sim_hp=[0.3, 0.9, 0.9, 0.6, 0.95, 0.3, 0.1],
        sim_ph=[0.4, 0.1, 0.1, 0.5, 0.1, 0.7, 0.9],
    )
    got = worst_over_seeds([table], [0.6], ">=", 2)
    # Rows 1 and 2 tie for the second place: the earlier is shown.
    assert rows(got.false_positives) == [4, 1]
    assert rows(got.misses) == [6, 0]
    assert got.wrong_direction is not None
    assert rows(got.wrong_direction) == [5, 0]
    first = got.false_positives[0]
    assert (first.label, first.score, first.premise_tokens, first.hypothesis_tokens) == ("neutral", 0.95, 9, 5)
    assert got.wrong_direction[0].direction_error == pytest.approx(0.4)
    everything = worst_over_seeds([table], [0.6], ">", 9)
    assert rows(everything.false_positives) == [4, 1, 2]
    # At the threshold, and the rule is "above": a miss now.
    assert rows(everything.misses) == [6, 0, 5, 3]
    assert rows(worst_over_seeds([table], [0.6], ">=", 9).misses) == [6, 0, 5]


def test_with_a_relation_head_direction_goes_by_its_score() -> None:
    # By similarity rows 0 and 1 are wrong and row 2 is right; by the head only row 2 is wrong, as `direction.score` counts it.
    head = {"score": [0.9, 0.8, 0.1], "reverse_score": [0.1, 0.3, 0.6], "similarity_score": [0.2, 0.2, 0.9]}
    columns = {"label": [0, 0, 0], "sim_hp": [0.2, 0.2, 0.9], "sim_ph": [0.9, 0.8, 0.1]}
    table = scored(**columns, score=head["score"])
    for name in ("reverse_score", "similarity_score"):
        table = table.append_column(name, pa.array(head[name]))
    # A cosine has no direction of its own; its head has one.
    for scores in (table, table.drop_columns(["sim_hp", "sim_ph"])):
        wrong = worst_over_seeds([scores], [0.5], ">=", 5).wrong_direction
        assert wrong is not None
        assert [(pair.row, pair.direction_error) for pair in wrong] == [(2, pytest.approx(0.5))]


def test_worst_over_seeds_goes_by_the_means() -> None:
    # Means: .5, .6, .55; thresholds .4 and .6, mean .5. By seed 1 alone the first would be the worst, by seed 2 the second.
    one = scored(label=[1, 1, 1], score=[0.9, 0.3, 0.6])
    two = scored(label=[1, 1, 1], score=[0.1, 0.9, 0.5])
    got = worst_over_seeds([one, two], [0.4, 0.6], ">=", 5)
    assert [(pair.row, pair.score) for pair in got.false_positives] == [
        (1, pytest.approx(0.6)),
        (2, pytest.approx(0.55)),
        (0, pytest.approx(0.5)),
    ]
    assert rows(worst_over_seeds([one, two], [0.4, 0.6], ">", 5).false_positives) == [1, 2]
    # Direction by the mean of both similarities: −.3 + .5, a tie, and −.1 − .1.
    turned = [
        scored(sim_hp=[0.6, 0.5, 0.6], sim_ph=[0.3, 0.5, 0.5]),
        scored(sim_hp=[0.2, 0.4, 0.6], sim_ph=[0.7, 0.4, 0.5]),
    ]
    wrong = worst_over_seeds(turned, [0.5, 0.5], ">=", 5).wrong_direction
    assert wrong is not None
    assert [(pair.row, pair.direction_error) for pair in wrong] == [(0, pytest.approx(0.1)), (1, 0.0)]


@pytest.mark.parametrize("rule", [">=", ">"])
def test_one_seed_over_seeds_is_that_seed(rule: metrics.EntailmentIf) -> None:
    table = random_table(7)
    # A score at the threshold stays there when the same seed is averaged thrice.
    assert rows(worst_over_seeds([table] * 3, [0.37] * 3, rule, 400).misses) == rows(
        worst_over_seeds([table], [0.37], rule, 400).misses
    )


def test_seeds_of_different_pairs_are_refused() -> None:
    table = scored(label=[0, 1])
    for other in (scored(label=[0, 2]), scored(label=[0]), table.drop_columns([*VARIANCES])):
        with pytest.raises(ValueError, match="different pairs"):
            worst_over_seeds([table, other], [0.5, 0.5], ">=", 1)
    for tables, thresholds in (([], []), ([table], [0.5, 0.5])):
        with pytest.raises(ValueError, match="one of each for every seed"):
            worst_over_seeds(tables, thresholds, ">=", 1)


def test_confusion_by_hand() -> None:
    table = scored(label=[1, 0, 0, 1, 1, -1], score=[0.5, 0.5, 0.9, 0.1, 0.2, 0.8])
    assert confusion(table, 0.5, ">=") == (
        Called("entailment", 2, 2, 1.0),
        Called("neutral", 3, 1, 1 / 3),
        Called("none", 1, 1, 1.0),
    )
    assert confusion(table, 0.5, ">")[:2] == (Called("entailment", 2, 1, 0.5), Called("neutral", 3, 0, 0.0))
