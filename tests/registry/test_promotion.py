"""The rule of promotion, condition by condition, on scores that are made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.config.load import load_params
from pipeline.config.params import EvaluateParams, RegisterParams
from pipeline.data.split import FEWEST_GROUPS
from pipeline.evaluation import metrics
from pipeline.registry.promotion import Check, Decision, Tables, confidence_of, decide, too_small
from pipeline.utils.errors import UserError
from tests.conftest import ROOT

N = 1500
PREMISES = np.repeat(np.arange(N // 3), 3)
LABELS = np.tile([0, 1, 2], N // 3)
PARAMS = load_params(ROOT / "tests/plain.yaml")
EVALUATE: EvaluateParams = PARAMS.evaluate


def rule(**changes: Any) -> RegisterParams:
    keys = {"max_test_drop": 1.0, "resamples": 300, "max_direction_drop": 1.0, "min_gain": 0.0}
    return PARAMS.register_.model_copy(update=keys | changes)


def scored(noise: float, direction: float, seed: int) -> pa.Table:
    """Scores that tell entailments the worse the more noise there is, and the direction of a share of the pairs."""
    r = np.random.default_rng(seed)
    right = np.arange(N) % 1000 < 1000 * direction
    return pa.table(
        {
            "label": LABELS,
            "reverse_label": np.full(N, -1),
            "score": np.clip((LABELS == 0) * 0.3 + 0.35 + noise * r.normal(size=N), 0, 1),
            "reverse_score": np.where(right, 0.0, 1.0),
            "sim_hp": np.where(right, 0.8, 0.2),
            "sim_ph": np.full(N, 0.5),
        }
    )


def model(noise: float, direction: float = 0.9, test_noise: float | None = None, **sets: pa.Table) -> dict[str, pa.Table]:
    test = noise if test_noise is None else test_noise
    # The selection part is used only for the threshold.
    return {"dev": scored(1.0, 0.0, 3), "promotion": scored(noise, direction, 1), "test": scored(test, direction, 2), **sets}


def held(old: Tables, new: Tables, register: RegisterParams | None = None, attempt: int = 1) -> Decision:
    sizes = {name: len(table) for name, table in old.items() if name != "dev"}
    groups = {name: PREMISES if size == N else np.arange(size) for name, size in sizes.items()}
    return decide(old, new, groups, EVALUATE, register or rule(), attempt=attempt)


def check(decision: Decision, name: str) -> Check:
    return next(check for check in decision.checks if check.name == name)


def test_better_beyond_doubt_and_nowhere_worse_is_promoted() -> None:
    decision = held(model(0.4), model(0.2))
    assert decision.promoted
    assert all(check.passed for check in decision.checks)
    assert [check.name for check in decision.checks] == ["promotion.pr_auc", "promotion.direction.score", "test.pr_auc"]
    gain = decision.differences["promotion"]["pr_auc"]
    assert gain.low > 0
    assert gain.new > gain.old
    assert decision.reason.startswith(f"promotion PR-AUC {gain.new:.2f} against {gain.old:.2f}: a gain of +")


def test_the_same_model_is_no_gain() -> None:
    decision = held(model(0.3), model(0.3))
    assert not decision.promoted
    assert (
        "a gain of +0.00 (attempt 1 against this champion: 97.5 % interval +0.00 to +0.00) "
        "is not significantly above register.min_gain 0"
    ) in decision.reason


def test_higher_is_not_enough_where_the_interval_says_that_it_may_be_chance() -> None:
    decision = held(model(0.3), model(0.3, promotion=scored(0.29, 0.9, seed=4)))
    gain = decision.differences["promotion"]["pr_auc"]
    assert gain.low < 0 < gain.gain
    assert not decision.promoted
    assert not check(decision, "promotion.pr_auc").passed


def test_the_gain_has_to_be_as_large_as_is_asked() -> None:
    gain = held(model(0.4), model(0.2)).differences["promotion"]["pr_auc"]
    assert held(model(0.4), model(0.2), rule(min_gain=gain.low - 0.1)).promoted
    assert not held(model(0.4), model(0.2), rule(min_gain=gain.low + 0.1)).promoted


def test_the_rule_may_ask_for_the_directed_metric() -> None:
    # The same scores; the new model knows the direction of more pairs.
    old, new = model(0.3, direction=0.5), model(0.3, direction=0.9)
    assert not held(old, new).promoted
    decision = held(old, new, rule(metric="directed_pr_auc"))
    assert decision.promoted
    assert decision.reason.startswith("promotion directed PR-AUC ")
    assert check(decision, "promotion.directed_pr_auc").passed
    columns = (new["promotion"].column(name).to_numpy() for name in ("label", "reverse_label", "score", "reverse_score"))
    truth, scores, _ = metrics.directed(*columns)
    found = decision.differences["promotion"]["directed_pr_auc"]
    assert found.new == pytest.approx(100 * metrics.pr_auc(truth, scores))


def test_a_metric_that_the_promotion_part_does_not_define_is_one_line() -> None:
    two_way = scored(0.3, 0.9, 1).set_column(1, "reverse_label", pa.array(np.zeros(N, dtype=np.int64)))
    both_ways = model(0.3, promotion=two_way)
    with pytest.raises(UserError, match=r"^params\.yaml: register\.metric: got 'directed_pr_auc', which needs entailment pairs"):
        held(both_ways, both_ways, rule(metric="directed_pr_auc"))
    # One draw has no standard error.
    with pytest.raises(UserError, match="needs both entailment pairs and others"):
        held(model(0.4), model(0.2), rule(resamples=1))


def test_direction_may_fall_by_the_margin_and_no_further() -> None:
    assert held(model(0.4, direction=0.900), model(0.2, direction=0.895)).promoted
    decision = held(model(0.4, direction=0.90), model(0.2, direction=0.85))
    assert not decision.promoted
    assert decision.reason.startswith("direction.score on promotion 90.00 against 93.20: -3.20")
    assert "it may fall by 1 at most" in decision.reason
    assert held(model(0.4, direction=0.90), model(0.2, direction=0.85), rule(max_direction_drop=10.0)).promoted


def test_the_direction_of_a_model_with_a_relation_head_is_that_of_its_score() -> None:
    champion, candidate = model(0.2), model(0.1)
    # Its head says every direction wrong, although its similarity says as many right as the champion's.
    wrong = pa.array(np.ones(N))
    for name, table in candidate.items():
        table = table.drop_columns(["reverse_score"]).append_column("reverse_score", wrong)
        candidate[name] = table.append_column("similarity_score", wrong)
    decision = held(champion, candidate)
    assert not decision.promoted
    assert decision.reason.startswith("direction.score on promotion 0.")


def test_a_test_set_may_fall_by_the_margin_and_no_further() -> None:
    old, new = model(0.4, test_noise=0.2), model(0.2, test_noise=0.4)
    decision = held(old, new)
    assert not decision.promoted
    assert decision.reason.startswith("pr_auc on test ")
    assert held(old, new, rule(max_test_drop=50.0)).promoted
    # The reason names every condition that failed.
    assert held(model(0.2, direction=0.9), model(0.4, direction=0.5)).reason.count("; ") == 2


def test_a_graded_test_set_is_held_by_its_correlation() -> None:
    r = np.random.default_rng(4)
    gold = r.random(200)
    good, bad = (pa.table({"score": gold, "cosine": gold + noise * r.normal(size=200)}) for noise in (0.1, 2.0))
    assert held(model(0.4, graded=good), model(0.2, graded=good)).promoted
    decision = held(model(0.4, graded=good), model(0.2, graded=bad))
    assert not decision.promoted
    assert decision.reason.startswith("spearman_cosine on graded ")


def test_a_graded_set_that_defines_no_correlation_blocks_nothing() -> None:
    cosine = np.random.default_rng(4).random(200)
    one_gold = pa.table({"score": np.full(200, 3.0), "cosine": cosine})
    decision = held(model(0.4, graded=one_gold), model(0.2, graded=one_gold))
    assert decision.promoted
    assert check(decision, "graded.spearman_cosine").said == (
        "spearman_cosine on graded is not defined for the champion, so it cannot fall"
    )
    # A candidate without a correlation where the champion has one falls.
    gold, constant = (pa.table({"score": cosine, "cosine": given}) for given in (cosine, np.full(200, 0.5)))
    assert held(model(0.4, graded=gold), model(0.2, graded=constant)).reason == (
        "spearman_cosine on graded: the champion has it, this model does not"
    )
    assert held(model(0.4, graded=constant), model(0.2, graded=gold)).promoted


@pytest.mark.parametrize("who", ["champion", "candidate"])
@pytest.mark.parametrize("name", ["promotion", "test"])
def test_a_score_that_is_not_a_number_is_refused(who: str, name: str) -> None:
    models = {"champion": model(0.4), "candidate": model(0.4)}
    table = models[who][name]
    scores = table["score"].to_numpy().copy()
    scores[np.flatnonzero(table["label"].to_numpy() == 0)[::10]] = np.nan
    models[who] = {**models[who], name: table.set_column(table.column_names.index("score"), "score", pa.array(scores))}
    with pytest.raises(UserError, match=rf"^set {name}: a score of the {who} is not a finite number \(column score\)"):
        held(models["champion"], models["candidate"])


def test_too_few_premises_are_refused_in_one_line() -> None:
    groups = {"promotion": np.arange(N) % (FEWEST_GROUPS - 1), "test": PREMISES}
    with pytest.raises(UserError, match=r"^the set promotion has 19 premises; the rule of promotion needs 20, .*promotion_share"):
        decide(model(0.4), model(0.2), groups, EVALUATE, rule(), attempt=1)
    enough = {"promotion": np.arange(N) % FEWEST_GROUPS, "test": PREMISES}
    assert decide(model(0.4), model(0.2), enough, EVALUATE, rule(), attempt=1).promoted


def operated(share: float, seed: int, operation: int = 0) -> pa.Table:
    """Reciprocal ranks of 200 rows of two operations, 1 for this share of them, else 1/2."""
    right = np.random.default_rng(seed).random(200) < share
    kinds = np.where(np.arange(200) < 150, operation, 2).astype(np.int8)
    ranks = np.where(right, 1.0, 0.5)
    return pa.table({"operation": kinds, "row": np.arange(200), "operator_mrr": ranks, "operator_recall": right})


def test_operators_decide_by_their_mean_over_operations_on_the_promotion_rows() -> None:
    by_operators = rule(metric="operator_mrr", max_test_drop=5.0)
    tables = {
        name: {"promotion_operations": operated(share, 1), "scenes": operated(share, 2)}
        for name, share in (("old", 0.3), ("new", 0.8))
    }
    old, new = tables["old"], tables["new"]
    decision = held(old, new, by_operators)
    assert decision.promoted
    assert [check.name for check in decision.checks] == ["promotion.operator_mrr", "scenes.operator_mrr"]
    found = decision.differences["promotion_operations"]
    for metric in ("operator_mrr", "operator_recall"):
        values = tables["new"]["promotion_operations"][metric].to_numpy()
        fusion, compression = 100 * values[:150].mean(), 100 * values[150:].mean()
        # Of 150 and of 50 rows, each operation counts the same.
        assert found[metric].new == pytest.approx((fusion + compression) / 2)
        assert found[f"fusion.{metric}"].new == pytest.approx(fusion)
        assert found[f"compression.{metric}"].new == pytest.approx(compression)
    assert not held(new, old, by_operators).promoted
    first, other = ({"promotion_operations": operated(0.8, 1, operation=kind)} for kind in (0, 1))
    with pytest.raises(ValueError, match="were not scored on the same pairs of promotion_operations"):
        held(first, other, by_operators)


def without_direction(tables: Tables) -> Tables:
    return {name: table.drop_columns(["sim_hp", "sim_ph"]) for name, table in tables.items()}


def test_who_says_nothing_of_direction_falls_if_the_champion_does() -> None:
    assert held(without_direction(model(0.4)), model(0.2)).promoted
    assert held(without_direction(model(0.4)), without_direction(model(0.2))).promoted
    decision = held(model(0.4), without_direction(model(0.2)))
    assert not decision.promoted
    assert decision.reason == "direction.score on promotion: the champion has it, this model does not"


def test_other_pairs_are_refused() -> None:
    for at, column, values in ((0, "label", np.roll(LABELS, 1)), (1, "reverse_label", np.arange(N) % 3 - 1)):
        other = scored(0.2, 0.9, 1).set_column(at, column, pa.array(values))
        with pytest.raises(ValueError, match="not scored on the same pairs of promotion"):
            held(model(0.4), model(0.2, promotion=other))


def test_a_better_selection_part_alone_promotes_nothing() -> None:
    worse, better = (model(0.3, dev=scored(noise, 0.9, 3)) for noise in (0.6, 0.05))
    decision = held(worse, better)
    assert not decision.promoted
    assert set(decision.differences) == {"promotion", "test"}
    assert decision.differences["promotion"]["pr_auc"].gain == 0


def test_the_confidence_of_all_attempts_together_is_the_one_asked_for() -> None:
    # 5 % · (1/2 + 1/6 + 1/12 + …): half of it for the first, and never more than all of it.
    errors = [1 - confidence_of(attempt, rule()) for attempt in range(1, 2001)]
    assert errors[:4] == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12, 0.05 / 20])
    assert 0.0499 < sum(errors) < 0.05
    assert 1 - confidence_of(1, rule(confidence=0.8)) == pytest.approx(0.1)


def test_a_later_attempt_has_to_gain_more() -> None:
    old, new = model(0.3), model(0.3, promotion=scored(0.23, 0.9, 4))
    decisions = [held(old, new, attempt=k) for k in (1, 2, 9, 60)]
    gains = [decision.differences["promotion"]["pr_auc"] for decision in decisions]
    assert {gain.gain for gain in gains} == {gains[0].gain}
    assert [gain.low for gain in gains] == sorted((gain.low for gain in gains), reverse=True)
    assert (decisions[0].promoted, decisions[-1].promoted) == (True, False)
    assert "(attempt 2 against this champion: 99.1667 % interval +" in decisions[1].reason


def test_a_promotion_part_that_cannot_find_two_points_is_said_with_the_pairs_it_takes() -> None:
    # (1.96 + 0.8416) · 0.7138 is 2 points.
    assert too_small(0.713, 900, 0.95) is too_small(float("nan"), 900, 0.95) is None
    # Half the error needs four times the pairs, a third of it nine times, rounded up to two digits.
    for error, enough in ((1.4276, "3,600"), (2.1414, "8,100")):
        assert f"(900 pairs) is too small to detect a gain of 2 points: with about {enough} pairs, 80 % of" in (
            too_small(error, 900, 0.95) or ""
        )
    decision = held(model(0.4), model(0.2))
    assert decision.warning == too_small(decision.differences["promotion"]["pr_auc"].error, N, 0.975) is not None
    assert held(model(0.3), model(0.3)).warning is None
