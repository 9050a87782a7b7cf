"""The analysis of the scores of single pairs: curves, shares and worst pairs, by hand and against each other."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from pipeline.families.pairs.analysis import Analysis, Pair, analyse, worst_pairs
from tests.evaluation.tables import VARIANCES, scored


def of(table: pa.Table) -> Analysis:
    return analyse(table, 0.5, ">=")


def rows(pairs: list[Pair], mistake: str) -> list[int]:
    return [pair.row for pair in pairs if pair.mistake == mistake]


def test_direction_by_length_ratio_by_hand() -> None:
    # Ratios:  4    2     3    1    1    1/2  1/5  10   8, the last no entailment.
    # Octaves: 1.5–2, .5–1, 1.5–2, 0, 0, −1–−.5, < −2, > 2
    table = scored(
        label=[0, 0, 0, 0, 0, 0, 0, 0, 1],
        premise_tokens=[8, 6, 9, 7, 5, 4, 3, 10, 8],
        hypothesis_tokens=[2, 3, 3, 7, 5, 8, 15, 1, 1],
        sim_hp=[0.9, 0.4, 0.2, 0.5, 0.8, 0.6, 0.1, 0.9, 0.9],
        sim_ph=[0.1, 0.3, 0.3, 0.5, 0.2, 0.5, 0.2, 0.1, 0.1],
        premise_log_var=[1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 5.0, 1.0, 9.0],
        hypothesis_log_var=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 0.0, 0.0],
    )
    assert of(table).points["direction_by_length"] == [
        (-2.25, 1, 0, 100, 0),
        (-0.75, 1, 100, 0, 0),
        # The first of the two ties by sim, which is wrong.
        (0, 2, 50, 50, 50),
        (0.75, 1, 100, 0, 100),
        (1.75, 2, 50, 100, 100),
        (2.25, 1, 100, 100, 100),
    ]


def test_without_variances_only_what_needs_them_is_missing() -> None:
    table = scored(premise_tokens=[6, 5], score=[0.2, 0.9]).drop_columns([*VARIANCES])
    found = of(table)
    assert found.points["direction_by_length"] == [(0, 1, None, None, 50), (0.25, 1, None, None, 100)]
    assert found.points["variance_by_length"] == found.points["similarity"] == []
    assert [(pair.mistake, pair.row, pair.direction_error) for pair in worst_pairs([table], [0.5], ">=", 3)] == [
        ("missed", 0, None)
    ]


def test_variance_and_length_by_hand() -> None:
    # Sentences (tokens, Σℓ): (9, 3) twice but one sentence, (7, 2), (6, 0), (5, 1), (5, 2) and, of neutral pairs, (5, 6), (5, 4),
    # (5, 7). Differences of tokens and of Σℓ of the entailments: 4, 2 (agree); 2, 1 (agree); 0, −1 (equal); 1, 0 (no say).
    table = scored(
        label=[0, 0, 0, 0, 1, 1, 1],
        premise_tokens=[9, 9, 5, 7, 9, 9, 9],
        hypothesis_tokens=[5, 7, 5, 6, 5, 5, 5],
        premise_log_var=[3.0, 3.0, 1.0, 2.0, 3.0, 3.0, 3.0],
        hypothesis_log_var=[1.0, 2.0, 2.0, 2.0, 6.0, 4.0, 7.0],
    )
    found = of(table)
    # 5 tokens: 1, 2, 6, 4, 7: mean 4, deviations −3, −2, 2, 0, 3: 26 / 4. Other lengths have too few sentences.
    assert found.points["variance_by_length"] == [(5, 5, 4.0, math.sqrt(6.5))]
    # Ranks of tokens: the five 5 → 3, 6 → 6, 7 → 7, 9 → 8; of Σℓ: 1 → 1, the three 2 → 3, 3 → 5, 4 → 6, 6 → 7, 7 → 8.
    # Deviations from 4.5, tokens · Σℓ: 5s: −1.5 · (−3.5 − 1.5 + 1.5 + 2.5 + 3.5) = −3.75;  1.5 · −1.5;  2.5 · −1.5;  3.5 · 0.5:
    # sum −8; squares: tokens 5 · 2.25 + 2.25 + 6.25 + 12.25 = 32; Σℓ 12.25 + 6.75 + 0.25 + 2.25 + 6.25 + 12.25 = 40.
    assert found.shares["Spearman with tokens"] == pytest.approx(-800 / math.sqrt(32 * 40))
    assert found.shares["agrees with length-only"] == pytest.approx(200 / 3)
    assert found.shares["right at equal length"] == 0
    # Differences in order of the pairs: tokens 4, 2, 0, 1 → ranks 4, 3, 1, 2; Σℓ 2, 1, −1, 0 → ranks 4, 3, 1, 2.
    assert found.shares["Spearman of the differences"] == pytest.approx(100)


def test_shares_that_are_not_defined_are_none() -> None:
    headings = ("Spearman with tokens", "Spearman of the differences", "agrees with length-only", "right at equal length")
    # One length, one sentence: nothing to correlate, and no pair of unequal length.
    assert [of(scored(label=[0, 0])).shares[name] for name in headings] == [None, None, None, 0]
    # No entailments at all.
    none = scored(label=[1, 2], premise_tokens=[6, 7], premise_log_var=[1.0, 2.0])
    assert [of(none).shares[name] for name in headings] == [pytest.approx(100), None, None, None]


def test_calibration_by_hand() -> None:
    # Ten bins of equal width; 0.5 is on an edge and in the bin above, 1 in the last bin, with 0.95.
    table = scored(label=[1, 2, 0, 1, 0, 0, 1], score=[0.12, 0.14, 0.5, 0.58, 0.61, 1.0, 0.95])
    found = of(table)
    expected = [(0.13, 0, 2), (0.54, 50, 2), (0.61, 100, 1), (0.975, 50, 2)]
    assert found.points["calibration"] == [pytest.approx(point) for point in expected]
    # By rank each pair has a bin.
    errors = (0.12, 0.14, 0.5, 0.58, 0.39, 0.0, 0.95)
    assert found.shares["calibration error"] == pytest.approx(100 * sum(errors) / 7)
    assert found.shares["Brier score"] == pytest.approx(100 * sum(error**2 for error in errors) / 7)
    assert found.shares["scores beyond [0, 1]"] == 0


def test_cosines_are_clipped_and_counted() -> None:
    # −0.4 becomes 0, 1.0000001 becomes 1: two of three; only the 0.5 misses, by a half.
    found = of(scored(label=[1, 0, 0], score=[-0.4, 0.5, 1.0000001]))
    assert found.shares["scores beyond [0, 1]"] == pytest.approx(200 / 3)
    assert found.shares["Brier score"] == pytest.approx(25 / 3)
    assert found.points["calibration"] == [(0, 0, 1), (0.5, 100, 1), (1, 100, 1)]


def test_equal_scores_share_a_bin_whatever_their_order() -> None:
    table = scored(label=[0, 1, 0, 1, 2], score=[0.7, 0.7, 0.7, 0.7, 0.9])
    assert of(table).shares["calibration error"] == pytest.approx(100 * (4 * 0.2 + 0.9) / 5)
    assert of(table.take([4, 1, 3, 0, 2])).shares == of(table).shares
    # Tenths are edges, rounding or not.
    tenths = of(scored(score=[k / 10 for k in range(11)])).points["calibration"]
    assert [pairs for _, _, pairs in tenths] == [1] * 9 + [2]


def test_similarities_by_label_by_hand() -> None:
    # Twenty bins; edges belong to the bin above, 1 to the last.
    table = scored(label=[2, 0, 0, -1], sim_hp=[0.12, 0.25, 1.0, 0.5], sim_ph=[0.3, 0.2, 0.74, 0.75])
    filled = [point for point in of(table).points["similarity"] if point[2] or point[3]]
    # No neutral pairs: no such histogram.
    assert filled == [
        ("entailment", 0.225, 0, 50),
        ("entailment", 0.275, 50, 0),
        ("entailment", 0.725, 0, 50),
        ("entailment", 0.975, 50, 0),
        ("contradiction", 0.125, 100, 0),
        ("contradiction", 0.325, 0, 100),
        ("none", 0.525, 100, 0),
        ("none", 0.775, 0, 100),
    ]


def test_the_pairs_called_entailment_by_hand() -> None:
    table = scored(label=[1, 0, 0, 1, 1, -1], score=[0.5, 0.5, 0.9, 0.1, 0.2, 0.8])
    names = ("entailment called entailment", "neutral called entailment", "none called entailment", "precision")
    assert [analyse(table, 0.5, ">=").shares[name] for name in names] == [100, pytest.approx(100 / 3), 100, 50]
    assert [analyse(table, 0.5, ">").shares[name] for name in names] == [50, 0, 100, 50]
    assert analyse(table, 1.0, ">").shares["precision"] is None


def test_a_value_that_is_not_finite_is_refused_by_its_column() -> None:
    with pytest.raises(ValueError, match="1 of 2 values of sim_ph are not finite"):
        of(scored(sim_ph=[0.5, math.nan]))


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
    worst = worst_pairs([table], [0.6], ">=", 2)
    # Rows 1 and 2 tie for the second place: the earlier is shown.
    assert rows(worst, "called entailment") == [4, 1]
    assert rows(worst, "missed") == [6, 0]
    assert rows(worst, "wrong direction") == [5, 0]
    assert worst[0] == Pair("called entailment", 4, "neutral", 0.95, None, (9, 5))
    assert [pair.direction_error for pair in worst[-2:]] == pytest.approx([0.4, 0.1])
    everything = worst_pairs([table], [0.6], ">", 9)
    assert rows(everything, "called entailment") == [4, 1, 2]
    # At the threshold, and the rule is "above": a miss now.
    assert rows(everything, "missed") == [6, 0, 5, 3]
    assert rows(worst_pairs([table], [0.6], ">=", 9), "missed") == [6, 0, 5]


def test_with_a_relation_head_direction_goes_by_its_score() -> None:
    # By similarity rows 0 and 1 are wrong and row 2 is right; by the head only row 2 is wrong, as `direction.score` counts it.
    head = {"score": [0.9, 0.8, 0.1], "reverse_score": [0.1, 0.3, 0.6], "similarity_score": [0.2, 0.2, 0.9]}
    columns = {"label": [0, 0, 0], "sim_hp": [0.2, 0.2, 0.9], "sim_ph": [0.9, 0.8, 0.1]}
    table = scored(**columns, score=head["score"])
    for name in ("reverse_score", "similarity_score"):
        table = table.append_column(name, pa.array(head[name]))
    # A cosine has no direction of its own; its head has one.
    for scores in (table, table.drop_columns(["sim_hp", "sim_ph"])):
        wrong = [pair for pair in worst_pairs([scores], [0.5], ">=", 5) if pair.mistake == "wrong direction"]
        assert [(pair.row, pair.direction_error) for pair in wrong] == [(2, pytest.approx(0.5))]


def test_worst_pairs_go_by_the_means_over_the_seeds() -> None:
    # Means: .5, .6, .55; thresholds .4 and .6, mean .5. By seed 1 alone the first would be the worst, by seed 2 the second.
    one, two = scored(label=[1, 1, 1], score=[0.9, 0.3, 0.6]), scored(label=[1, 1, 1], score=[0.1, 0.9, 0.5])
    found = worst_pairs([one, two], [0.4, 0.6], ">=", 5)
    assert [(pair.row, pair.score) for pair in found] == [(row, pytest.approx(s)) for row, s in ((1, 0.6), (2, 0.55), (0, 0.5))]
    assert rows(worst_pairs([one, two], [0.4, 0.6], ">", 5), "called entailment") == [1, 2]
    # Direction by the mean of both similarities: −.3 + .5, a tie, and −.1 − .1.
    turned = [scored(sim_hp=[0.6, 0.5, 0.6], sim_ph=[0.3, 0.5, 0.5]), scored(sim_hp=[0.2, 0.4, 0.6], sim_ph=[0.7, 0.4, 0.5])]
    wrong = worst_pairs(turned, [0.5, 0.5], ">=", 5)
    assert [(pair.row, pair.direction_error) for pair in wrong] == [(0, pytest.approx(0.1)), (1, 0.0)]


def test_seeds_of_different_pairs_are_refused() -> None:
    table = scored(label=[0, 1])
    for other in (scored(label=[0, 2]), scored(label=[0]), table.drop_columns([*VARIANCES])):
        with pytest.raises(ValueError, match="different pairs"):
            worst_pairs([table, other], [0.5, 0.5], ">=", 1)
