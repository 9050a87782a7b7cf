"""The hypothesis-only baseline: what it finds, and the threshold it uses."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.decision import EntailmentIf
from pipeline.families.pairs.baselines import Hypotheses, hypothesis_only


def test_hypothesis_only_finds_a_shortcut_where_there_is_one_and_none_where_there_is_none() -> None:
    r = np.random.default_rng(1)
    words = ["dog", "cat", "tree", "house", "boat", "hill"]

    def draw(n: int, leak: bool) -> Hypotheses:
        truth = r.random(n) < 0.4
        texts = [" ".join(r.choice(words, 4)) + (" outdoors" if leak and t else "") for t in truth]
        return Hypotheses(texts, np.where(truth, 0, 1).astype(np.int8))

    leaky = hypothesis_only(draw(600, True), {"dev": [draw(200, True)], "t": [draw(200, True)]})
    assert leaky["t"].scores["pr_auc"] > 99
    clean = hypothesis_only(draw(600, False), {"dev": [draw(200, False)], "t": [draw(400, False)]})
    assert clean["t"].scores["pr_auc"] < 55


def test_hypothesis_only_reads_characters_where_there_are_no_spaces() -> None:
    """「ない」 (not) decides; no sentence occurs twice, so that words of whole sentences would decide nothing."""
    r = np.random.default_rng(2)

    def draw(n: int) -> Hypotheses:
        truth = r.random(n) < 0.4
        start = ["".join(r.choice(list("犬猫人子男女山川車道家花青赤白黒"), 8)) for _ in range(n)]
        return Hypotheses(
            [f"{s}が走{'る' if t else 'らない'}。" for s, t in zip(start, truth, strict=True)],
            np.where(truth, 0, 1).astype(np.int8),
        )

    found = hypothesis_only(draw(300), {"dev": [draw(100)], "t": [draw(100)]})
    assert found["t"].scores["pr_auc"] > 99


def hypotheses(counts: dict[str, tuple[int, int]]) -> Hypotheses:
    """Word → (entailments, others)."""
    texts = [word for word, numbers in counts.items() for _ in range(sum(numbers))]
    return Hypotheses(texts, np.array([k >= n for n, m in counts.values() for k in range(n + m)], dtype=np.int8))


def test_hypothesis_only_sweeps_its_threshold_on_the_development_set() -> None:
    train = hypotheses({"often": (20, 0), "sometimes": (10, 10), "never": (0, 20)})
    # "sometimes" is an entailment in development, and none in the test set.
    dev = hypotheses({"often": (5, 0), "sometimes": (5, 0), "never": (0, 10)})
    test = hypotheses({"often": (2, 0), "sometimes": (0, 5), "never": (0, 3)})
    # A set in batches is the set.
    parts = [Hypotheses(test.texts[k : k + 3], test.label[k : k + 3]) for k in (0, 3, 6, 9)]
    got = hypothesis_only(train, {"dev": [dev], "t": parts})
    assert got["dev"].scores["accuracy"] == 100
    # "often" and "never" are right, 5 of 10; swept on the test set, the threshold would be right on all.
    assert got["t"].scores["accuracy"] == 50


def test_hypothesis_only_follows_the_step_and_the_rule_of_evaluation() -> None:
    # Symmetric, so that a word not in training scores exactly ½.
    train = hypotheses({"good": (1, 0), "bad": (0, 1)})
    dev = hypotheses({"good": (3, 0), "unheard": (0, 2), "bad": (0, 1)})
    test = hypotheses({"good": (1, 0), "unheard": (0, 4)})

    def accuracy(step: float, rule: EntailmentIf) -> tuple[float, float]:
        got = hypothesis_only(train, {"dev": [dev], "t": [test]}, step, rule)
        return got["dev"].scores["accuracy"], got["t"].scores["accuracy"]

    # At a threshold of ½, "unheard" reaches it, and does not exceed it.
    assert accuracy(0.5, ">=") == (pytest.approx(100 * 4 / 6), pytest.approx(100 * 1 / 5))
    assert accuracy(0.5, ">") == (100, 100)
    # Thresholds 0 and 1 alone: all are entailments, or none is. Both are right on half of dev; the lowest is taken.
    assert accuracy(1.0, ">=") == (50, pytest.approx(100 * 1 / 5))
    # A fine step finds one above ½.
    assert accuracy(0.001, ">=") == (100, 100)


def test_a_pair_is_hard_if_its_hypothesis_makes_another_of_the_three_labels_more_likely() -> None:
    def labelled(words: str) -> Hypotheses:
        """Words with the first letter of their label."""
        pairs = [word.split(":") for word in words.split()]
        return Hypotheses([word for word, _ in pairs], np.array(["enc".index(label) for _, label in pairs], dtype=np.int8))

    train = labelled("outdoors:e " * 20 + "competition:n " * 20 + "sleeping:c " * 20)
    test = labelled("outdoors:e outdoors:n competition:e competition:n competition:c sleeping:n sleeping:c")
    got = hypothesis_only(train, {"dev": [train], "t": [test]})
    assert got["t"].hard.tolist() == [False, True, True, False, True, True, False]
    # By the threshold, only entailment against the rest counts: wrong on the second and the third.
    assert got["t"].scores["accuracy"] == pytest.approx(100 * 5 / 7)
