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
from pipeline.data.split import in_promotion
from pipeline.evaluation import metrics
from pipeline.registry.promotion import Decision, Tables, decide
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

    def model(self, skill: float, r: np.random.Generator) -> Tables:
        """A model whose scores separate entailments by `skill` standard deviations."""
        noise = np.sqrt(CORRELATION) * self.shared + np.sqrt(1 - CORRELATION) * r.normal(size=len(self.label))
        score = 1 / (1 + np.exp(-(skill * (self.label == 0) + noise)))
        columns = {"label": self.label, "reverse_label": np.full(len(self.label), -1, np.int8), "score": score}
        parts = {"dev": ~self.promotion, "promotion": self.promotion}
        return {part: pa.table({key: column[rows] for key, column in columns.items()}) for part, rows in parts.items()}

    def decided(self, champion: Tables, candidate: Tables, attempt: int = 1) -> Decision:
        groups = {"promotion": self.premise[self.promotion]}
        return decide(champion, candidate, groups, PARAMS.evaluate, RULE, attempt=attempt)


def score(model: Tables) -> float:
    table = model["dev"]
    return metrics.pr_auc(table["label"].to_numpy() == 0, table["score"].to_numpy())


def test_the_best_of_eight_equal_candidates_is_seldom_promoted() -> None:
    promoted = 0
    for grid in range(GRIDS):
        r = np.random.default_rng([1, grid])
        pairs = DevelopmentSet.drawn(300, r)
        champion, *candidates = (pairs.model(SKILL, r) for _ in range(CANDIDATES + 1))
        promoted += pairs.decided(champion, max(candidates, key=score)).promoted
    assert promoted <= 0.05 * GRIDS


def test_of_eight_equal_candidates_one_after_the_other_seldom_any_is_promoted() -> None:
    promoted = 0
    for grid in range(GRIDS):
        r = np.random.default_rng([2, grid])
        pairs = DevelopmentSet.drawn(200, r)
        champion = pairs.model(SKILL, r)
        # Each candidate is another model, so each is another attempt (test_alias_log.py).
        attempts = range(1, CANDIDATES + 1)
        promoted += any(pairs.decided(champion, pairs.model(SKILL, r), attempt).promoted for attempt in attempts)
    assert promoted <= 0.05 * GRIDS


def test_a_gain_of_two_points_is_found_on_five_thousand_pairs() -> None:
    found, gains = 0, []
    for grid in range(GRIDS):
        r = np.random.default_rng([3, grid])
        pairs = DevelopmentSet.drawn(3333, r)
        champion, better = pairs.model(SKILL, r), pairs.model(TWO_POINTS_MORE, r)
        decision = pairs.decided(champion, better)
        found += decision.promoted
        gains.append(decision.differences["promotion"]["pr_auc"].gain)
    # The gain has the size that the test needs.
    assert np.mean(gains) == pytest.approx(2.0, abs=0.1)
    assert found >= 0.8 * GRIDS
