"""The rule of promotion on simulated grids: how often chance promotes a model that is not better, and how often a gain is found.

Everything except the models' scores is real: the split of the development set by its premises, the choice by PR-AUC on the
selection part, the count of attempts in the history, the decision on the promotion part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.config.load import load_params
from pipeline.config.params import RegisterParams
from pipeline.data.split import in_promotion
from pipeline.evaluation import metrics
from pipeline.registry.alias_log import Change, Event, History
from pipeline.registry.promotion import Decision, Judged, decide
from tests.conftest import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.weekly]

GRIDS = 400
CANDIDATES = 8
A_PREMISE = 3
# Correlation of two models' scores on the pairs of one label: fine-tuned from one backbone, they find the same pairs hard.
CORRELATION = 0.9
# The part of that correlation that belongs to the premise and moves all its pairs.
OF_PREMISE = 0.3
# PR-AUC 61.73 and 63.73 among infinitely many pairs.
SKILL, TWO_POINTS_MORE = 1.0, 1.0645
PARAMS = load_params(ROOT / "tests/plain.yaml")
RULE = PARAMS.register_.model_copy(update={"resamples": 500})


@dataclass(frozen=True)
class DevelopmentSet:
    """Labels and premises of its pairs, and the part of the scores that all models share."""

    premise: NDArray[np.int64]
    label: NDArray[np.int8]
    shared: NDArray[np.float64]
    promotion: NDArray[np.bool_]

    @staticmethod
    def drawn(premises: int, r: np.random.Generator) -> DevelopmentSet:
        premise = np.repeat(np.arange(premises), A_PREMISE)
        own, of_premise = r.normal(size=len(premise)), r.normal(size=premises)[premise]
        names = [f"premise {number}" for number in r.integers(0, 2**62, premises)]
        return DevelopmentSet(
            premise=premise,
            label=np.tile(np.arange(3, dtype=np.int8), premises),
            shared=np.sqrt(1 - OF_PREMISE) * own + np.sqrt(OF_PREMISE) * of_premise,
            promotion=in_promotion(names, PARAMS.data.promotion_share)[premise],
        )

    def model(self, name: str, skill: float, r: np.random.Generator) -> Judged:
        """A model whose scores separate entailments by `skill` standard deviations."""
        noise = np.sqrt(CORRELATION) * self.shared + np.sqrt(1 - CORRELATION) * r.normal(size=len(self.label))
        score = 1 / (1 + np.exp(-(skill * (self.label == 0) + noise)))
        columns = {"label": self.label, "reverse_label": np.full(len(self.label), -1, np.int8), "score": score}
        parts = {"dev": ~self.promotion, "promotion": self.promotion}
        tables = {part: pa.table({key: column[rows] for key, column in columns.items()}) for part, rows in parts.items()}
        return Judged(digest=name, weights=name, megabytes=90.0, tables=tables)

    def decided(self, champion: Judged, candidate: Judged, history: History, rule: RegisterParams = RULE) -> Decision:
        attempt, _ = history.attempt(1, {"champion": champion.weights, "candidate": candidate.weights}, {})
        groups = {"promotion": self.premise[self.promotion]}
        return decide(champion, candidate, groups, PARAMS.evaluate, rule, attempt=attempt)


def score(model: Judged, part: str = "dev") -> float:
    table = model.tables[part]
    return metrics.pr_auc(table["label"].to_numpy() == 0, table["score"].to_numpy())


def entered(history: History, champion: Judged, candidate: Judged) -> History:
    """With the entry that `pipeline.registry.champions` makes of a candidate that was kept."""
    number = len(history.events) + 1
    decision = {"weights": {"champion": champion.weights, "candidate": candidate.weights}}
    change = Change(action="kept", version=number + 1, champion=1, challenger=None, reason="", decision=decision)
    event = Event(number=number, before=number - 1, previous=1, change=change, by="", at=0.0, id=str(number))
    return History(history.name, (*history.events, event))


def test_the_best_of_eight_equal_candidates_is_seldom_promoted() -> None:
    promoted = 0
    for grid in range(GRIDS):
        r = np.random.default_rng([1, grid])
        pairs = DevelopmentSet.drawn(300, r)
        champion, *candidates = (pairs.model(f"model {k}", SKILL, r) for k in range(CANDIDATES + 1))
        promoted += pairs.decided(champion, max(candidates, key=score), History("m", ())).promoted
    assert promoted <= 0.05 * GRIDS


def test_a_choice_by_the_pairs_that_decide_is_what_promotes_by_chance() -> None:
    """The rule as it was before the split: a 95 % interval on the pairs that the best of eight was chosen on."""
    promoted = 0
    rule = RULE.model_copy(update={"confidence": 0.9})  # Of which the first attempt gets 95 %.
    for grid in range(GRIDS):
        r = np.random.default_rng([1, grid])
        pairs = DevelopmentSet.drawn(300, r)
        champion, *candidates = (pairs.model(f"model {k}", SKILL, r) for k in range(CANDIDATES + 1))
        best = max(candidates, key=lambda model: score(model, "promotion"))
        promoted += pairs.decided(champion, best, History("m", ()), rule).promoted
    assert promoted >= 0.1 * GRIDS


def test_of_eight_equal_candidates_one_after_the_other_seldom_any_is_promoted() -> None:
    promoted = 0
    for grid in range(GRIDS):
        r = np.random.default_rng([2, grid])
        pairs, history = DevelopmentSet.drawn(200, r), History("m", ())
        champion = pairs.model("champion", SKILL, r)
        for k in range(CANDIDATES):
            candidate = pairs.model(f"model {k}", SKILL, r)
            if pairs.decided(champion, candidate, history).promoted:
                promoted += 1
                break
            history = entered(history, champion, candidate)
    assert promoted <= 0.05 * GRIDS


def test_a_gain_of_two_points_is_found_on_five_thousand_pairs() -> None:
    found, gains = 0, []
    for grid in range(GRIDS):
        r = np.random.default_rng([3, grid])
        pairs = DevelopmentSet.drawn(3333, r)
        champion, better = pairs.model("champion", SKILL, r), pairs.model("better", TWO_POINTS_MORE, r)
        decision = pairs.decided(champion, better, History("m", ()))
        found += decision.promoted
        gains.append(decision.differences["promotion"]["pr_auc"].gain)
    # The gain has the size that the test needs.
    assert np.mean(gains) == pytest.approx(2.0, abs=0.1)
    assert found >= 0.8 * GRIDS
