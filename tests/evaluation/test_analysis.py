from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.evaluation import metrics
from pipeline.families.pairs.analysis import (
    DirectionBin,
    LabelHistogram,
    LengthBin,
    Reliability,
    calibration,
    confusion,
    direction_by_length_ratio,
    log_var_by_length,
    similarity_by_label,
    worst_over_seeds,
)
from tests.evaluation.tables import VARIANCES, random_table, scored


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def as_rows(way: Reliability) -> list[tuple[float, ...]]:
    """Lower, upper, pairs, mean score, share of entailment of each bin."""
    return [dataclasses.astuple(part) for part in way.bins]


def test_direction_by_length_ratio_by_hand() -> None:
    # Ratios, edges at 2 and 4:  4    2    3    1    1    1/2  1/5  8, the last no entailment.
    # Bins:                      2–4  1–2  2–4  1    1    ½–1  <¼
    table = scored(
        label=[0, 0, 0, 0, 0, 0, 0, 1],
        premise_tokens=[8, 6, 9, 7, 5, 4, 3, 8],
        hypothesis_tokens=[2, 3, 3, 7, 5, 8, 15, 1],
        sim_hp=[0.9, 0.4, 0.2, 0.5, 0.8, 0.6, 0.1, 0.9],
        sim_ph=[0.1, 0.3, 0.3, 0.5, 0.2, 0.5, 0.2, 0.1],
        premise_log_var=[1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 5.0, 9.0],
        hypothesis_log_var=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 0.0],
    )
    assert direction_by_length_ratio(table, (2, 4)) == (
        DirectionBin(lower=0.0, upper=0.25, pairs=1, sim=0.0, var=1.0, length_only=0.0),
        DirectionBin(lower=0.5, upper=1.0, pairs=1, sim=1.0, var=0.0, length_only=0.0),
        # The first of the two ties by sim, which is wrong.
        DirectionBin(lower=1.0, upper=1.0, pairs=2, sim=0.5, var=0.5, length_only=0.5),
        DirectionBin(lower=1.0, upper=2.0, pairs=1, sim=1.0, var=0.0, length_only=1.0),
        DirectionBin(lower=2.0, upper=4.0, pairs=2, sim=0.5, var=1.0, length_only=1.0),
    )
    # One more, 10 to 2, lies beyond the last edge.
    beyond = direction_by_length_ratio(scored(premise_tokens=[10], hypothesis_tokens=[2]), (2, 4))
    assert [(part.lower, part.upper) for part in beyond] == [(4.0, None)]


@pytest.mark.parametrize("seed", range(3))
def test_direction_bins_hold_every_entailment_pair_and_mirror_when_turned_round(seed: int) -> None:
    table = random_table(seed)
    entailed = table.column("label").to_numpy() == 0
    bins = direction_by_length_ratio(table)
    assert sum(part.pairs for part in bins) == entailed.sum()
    whole = metrics.share_right(table.column("sim_hp").to_numpy()[entailed], table.column("sim_ph").to_numpy()[entailed])
    assert sum(part.pairs * (part.sim or 0) for part in bins) / entailed.sum() == pytest.approx(whole)
    turned = table.rename_columns(
        [{"premise_tokens": "hypothesis_tokens", "hypothesis_tokens": "premise_tokens"}.get(n, n) for n in table.column_names]
    )
    mirrored = [part.pairs for part in reversed(direction_by_length_ratio(turned))]
    assert mirrored == [part.pairs for part in bins]


def test_without_variances_only_what_needs_them_is_missing() -> None:
    table = scored(premise_tokens=[6, 5], score=[0.2, 0.9]).drop_columns([*VARIANCES])
    assert direction_by_length_ratio(table, (2,)) == (
        DirectionBin(lower=1.0, upper=1.0, pairs=1, sim=None, var=None, length_only=0.5),
        DirectionBin(lower=1.0, upper=2.0, pairs=1, sim=None, var=None, length_only=1.0),
    )
    assert log_var_by_length(table) is None
    assert similarity_by_label(table) is None
    worst = worst_over_seeds([table], [0.5], ">=", 3)
    assert worst.wrong_direction is None
    assert [(pair.row, pair.direction_error) for pair in worst.misses] == [(0, None)]


@pytest.mark.parametrize("bins", [(), (1.0, 2.0), (2.0, 2.0), (3.0, 2.0)])
def test_edges_that_do_not_rise_from_above_one_are_refused(bins: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must rise from above 1"):
        direction_by_length_ratio(scored(label=[0]), bins)


def test_variance_and_length_by_hand() -> None:
    # Sentences (tokens, Σℓ): (9, 3) twice but one sentence, (5, 1), (5, 2), (7, 2), (6, 0) and, of the neutral pair, (5, 6).
    # Differences of tokens and of Σℓ of the entailments: 4, 2 (agree); 2, 1 (agree); 0, −1 (equal); 1, 0 (var has no say).
    table = scored(
        label=[0, 0, 0, 0, 1],
        premise_tokens=[9, 9, 5, 7, 9],
        hypothesis_tokens=[5, 7, 5, 6, 5],
        premise_log_var=[3.0, 3.0, 1.0, 2.0, 3.0],
        hypothesis_log_var=[1.0, 2.0, 2.0, 2.0, 6.0],
    )
    got = log_var_by_length(table, few=2)
    assert got is not None
    # (9, 3) (5, 1) (7, 2) (5, 2) (6, 2) (5, 6): six, of which three have 5 tokens: mean 3, deviations −2, −1, 3: 14 / 2 = 7.
    assert got.sentences == 6
    assert got.by_tokens == (LengthBin(tokens=5, sentences=3, mean=3.0, sd=math.sqrt(7)),)
    assert got.left_out == 3
    # Ranks of Σℓ: 1 → 1, the three 2 → 3, 3 → 5, 6 → 6; of tokens: the three 5 → 2, 6 → 4, 7 → 5, 9 → 6. Deviations from 3.5:
    #   (9, 3): 2.5 · 1.5;  (5, 1): −1.5 · −2.5;  (7, 2): 1.5 · −0.5
    #   (5, 2): −1.5 · −0.5;  (6, 2): 0.5 · −0.5;  (5, 6): −1.5 · 2.5
    #   sum 3.75 + 3.75 − 0.75 + 0.75 − 0.25 − 3.75 = 3.5
    #   squares: tokens 6.25 + 3 · 2.25 + 2.25 + 0.25 = 15.5;  Σℓ 2.25 + 6.25 + 3 · 0.25 + 6.25 = 15.5
    assert got.spearman == pytest.approx(3.5 / 15.5)
    assert (got.unequal_pairs, got.agreement) == (3, pytest.approx(2 / 3))
    assert (got.equal_pairs, got.var_on_equal) == (1, 0.0)
    # Differences in order of the pairs: tokens 4, 2, 0, 1 → ranks 4, 3, 1, 2; Σℓ 2, 1, −1, 0 → ranks 4, 3, 1, 2.
    assert got.difference_spearman == pytest.approx(1)


def test_variance_and_length_where_something_is_not_defined() -> None:
    # One length, one sentence: nothing to correlate, and no pair of unequal length.
    same = log_var_by_length(scored(label=[0, 0]), few=1)
    assert same is not None
    assert (same.spearman, same.difference_spearman, same.agreement, same.var_on_equal) == (None, None, None, 0.0)
    assert same.by_tokens == (LengthBin(tokens=5, sentences=1, mean=0.0, sd=None),)
    # No entailments at all.
    none = log_var_by_length(scored(label=[1, 2], premise_tokens=[6, 7], premise_log_var=[1.0, 2.0]), few=1)
    assert none is not None
    assert (none.equal_pairs, none.unequal_pairs, none.agreement, none.var_on_equal) == (0, 0, None, None)
    assert none.spearman == pytest.approx(1)


def test_calibration_by_hand() -> None:
    # Two bins of equal width: 0.1, 0.2 (none of 2; mean 0.15), and 0.5 (on the edge: above), 0.6, 0.9, 1.0 (three of 4; 0.75).
    table = scored(label=[1, 2, 0, 1, 0, 0], score=[0.1, 0.2, 0.5, 0.6, 0.9, 1.0])
    got = calibration(table, bins=2)
    assert as_rows(got.equal_width) == [pytest.approx((0.0, 0.5, 2, 0.15, 0.0)), pytest.approx((0.5, 1.0, 4, 0.75, 0.75))]
    assert got.equal_width.expected_error == pytest.approx((2 * 0.15 + 4 * 0) / 6)
    # Two of equal mass: 0.1, 0.2, 0.5 (one of three; mean 0.8 / 3) and 0.6, 0.9, 1.0 (two of three; 2.5 / 3).
    assert as_rows(got.equal_mass) == [
        pytest.approx((0.1, 0.5, 3, 0.8 / 3, 1 / 3)),
        pytest.approx((0.6, 1.0, 3, 2.5 / 3, 2 / 3)),
    ]
    assert got.equal_mass.expected_error == pytest.approx((3 * 0.2 / 3 + 3 * 0.5 / 3) / 6)
    # 0.01 + 0.04 + 0.25 + 0.36 + 0.01 + 0
    assert got.brier == pytest.approx(0.67 / 6)
    assert (got.pairs, got.clipped) == (6, 0)


def test_cosines_are_clipped_and_counted() -> None:
    # −0.4 becomes 0, 1.0000001 becomes 1: two of three; only the 0.5 misses, by a half.
    got = calibration(scored(label=[1, 0, 0], score=[-0.4, 0.5, 1.0000001]), bins=4)
    assert got.clipped == 2
    assert got.brier == pytest.approx(0.25 / 3)
    assert [(part.lower, part.upper, part.pairs) for part in got.equal_width.bins] == [(0, 0.25, 1), (0.5, 0.75, 1), (0.75, 1, 1)]


def test_equal_scores_share_a_bin_whatever_their_order() -> None:
    table = scored(label=[0, 1, 0, 1, 2], score=[0.7, 0.7, 0.7, 0.7, 0.9])
    got = calibration(table, bins=5)
    # Ranks 0, 0, 0, 0, 4.
    assert as_rows(got.equal_mass) == [pytest.approx((0.7, 0.7, 4, 0.7, 0.5)), pytest.approx((0.9, 0.9, 1, 0.9, 0.0))]
    assert calibration(table.take([4, 1, 3, 0, 2]), bins=5) == got
    # Tenths are edges, rounding or not.
    tenths = calibration(scored(score=[k / 10 for k in range(11)]), bins=10)
    assert [part.pairs for part in tenths.equal_width.bins] == [1] * 9 + [2]


def test_one_label_is_calibrated_too_and_no_pairs_are_refused() -> None:
    got = calibration(scored(score=[0.5, 1.0]), bins=10)
    assert got.equal_width.expected_error == pytest.approx(0.25)
    with pytest.raises(ValueError, match="no scores"):
        calibration(scored(score=[]))


def test_similarities_by_label_by_hand() -> None:
    # Four bins: below ¼, ½, ¾, 1; edges belong to the bin above, 1 to the last.
    table = scored(
        label=[2, 0, 0, -1],
        sim_hp=[0.1, 0.25, 1.0, 0.5],
        sim_ph=[0.3, 0.2, 0.74, 0.75],
    )
    got = similarity_by_label(table, bins=4)
    assert got is not None
    assert got.edges == (0, 0.25, 0.5, 0.75, 1)
    # No neutral pairs: no such histogram.
    assert got.labels == (
        LabelHistogram("entailment", 2, (0, 1, 0, 1), (1, 0, 1, 0)),
        LabelHistogram("contradiction", 1, (1, 0, 0, 0), (0, 1, 0, 0)),
        LabelHistogram("none", 1, (0, 0, 1, 0), (0, 0, 0, 1)),
    )


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_all_bins_sum_up_and_agree_with_the_accuracy(seed: int) -> None:
    table = random_table(seed)
    n, entailed = table.num_rows, table.column("label").to_numpy() == 0
    reliable = calibration(table)
    for way in (reliable.equal_width, reliable.equal_mass):
        assert sum(part.pairs for part in way.bins) == n
        assert sum(part.pairs * part.entailed for part in way.bins) == pytest.approx(entailed.sum())
        assert all(part.lower - 1e-12 <= part.mean_score <= part.upper + 1e-12 for part in way.bins)
    similar, lengths = similarity_by_label(table), log_var_by_length(table)
    assert similar is not None
    assert lengths is not None
    assert sum(part.pairs for part in similar.labels) == n
    assert all(sum(part.sim_hp) == sum(part.sim_ph) == part.pairs for part in similar.labels)
    assert sum(part.sentences for part in lengths.by_tokens) + lengths.left_out == lengths.sentences
    assert lengths.unequal_pairs + lengths.equal_pairs == entailed.sum()
    calls = confusion(table, 0.5, ">=")
    right = sum(part.called if part.label == "entailment" else part.pairs - part.called for part in calls)
    assert right / n == pytest.approx(metrics.accuracy_at(entailed, table.column("score").to_numpy(), 0.5))


@pytest.mark.parametrize("label", [0, 1, -1])
def test_no_number_is_ever_nan_nor_a_numpy_type(label: int) -> None:
    for table in (scored(label=[label]), scored(label=[label] * 3, score=[0.0, 0.5, 1.0])):
        results = [
            direction_by_length_ratio(table),
            log_var_by_length(table, few=1),
            calibration(table),
            similarity_by_label(table),
            worst_over_seeds([table], [0.5], ">=", 2),
            worst_over_seeds([table, table], [0.5, 0.6], ">", 2),
            confusion(table, 0.5, ">="),
        ]
        parts = [part for result in results for part in (result if isinstance(result, tuple) else (result,))]
        for part in parts:
            assert part is not None
            for leaf in leaves(dataclasses.asdict(part)):
                assert type(leaf) in (int, float, str, type(None)), part
                assert leaf is None or isinstance(leaf, str) or math.isfinite(leaf), part


def test_a_value_that_is_not_finite_is_refused_by_its_column() -> None:
    with pytest.raises(ValueError, match="1 of 2 values of sim_ph are not finite"):
        similarity_by_label(scored(sim_ph=[0.5, math.nan]))
