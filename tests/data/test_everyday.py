"""Pairs of everyday sentences: labels that agree with the words, splits, and what is not in them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import NamedTuple

import pytest

from pipeline.data.generated import everyday
from pipeline.data.generated.everyday import everyday_sentences
from pipeline.data.generated.premises import Split, split_of
from pipeline.families.pairs.everyday import everyday_pairs
from pipeline.families.pairs.word_changes import changes
from tests.conftest import ROOT


class Pair(NamedTuple):
    premise: str
    hypothesis: str
    label: str
    reverse_label: str


def rows(split: Split, count: int, seed: int) -> list[Pair]:
    return [Pair(*row) for row in everyday_pairs(split, count, seed)]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return rows("train", 6000, 1)


def test_they_are_seeded_and_a_premise_is_in_one_split(pairs: list[Pair]) -> None:
    assert rows("train", 500, 1)[:490] == pairs[:490]
    assert rows("train", 500, 2) != pairs[:500]
    assert len(rows("test", 501, 1)) == 501
    assert {split_of(pair.premise) for pair in pairs} == {"train"}
    assert len({(pair.premise, pair.hypothesis) for pair in pairs}) == len(pairs)


def test_each_label_is_common_and_a_premise_has_one_pair_of_each(pairs: list[Pair]) -> None:
    counts = Counter(pair.label for pair in pairs)
    assert min(counts.values()) > 0.2 * len(pairs), counts
    assert max(Counter((pair.premise, pair.label) for pair in pairs).values()) == 1
    assert {(pair.label, pair.reverse_label) for pair in pairs} == {
        ("entailment", "neutral"),
        ("entailment", "entailment"),
        ("neutral", "neutral"),
        ("neutral", "entailment"),
        ("contradiction", "contradiction"),
    }
    # Hundreds of words decide, on either side.
    words = [set(re.findall(r"\w+", pair.hypothesis.lower())) - set(re.findall(r"\w+", pair.premise.lower())) for pair in pairs]
    assert len(set().union(*words)) > 600


def test_no_pair_has_two_labels_also_turned_round(pairs: list[Pair]) -> None:
    labels: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        labels.setdefault((pair.premise, pair.hypothesis), set()).add(pair.label)
        labels.setdefault((pair.hypothesis, pair.premise), set()).add(pair.reverse_label)
    assert [texts for texts, found in labels.items() if len(found) > 1] == []


def test_what_somebody_did_besides_is_neither_entailed_nor_excluded(pairs: list[Pair]) -> None:
    for pair in pairs:
        if (pair.label, pair.reverse_label) == ("neutral", "neutral"):
            one, two = (set(re.findall(r"\w+", text.lower())) for text in pair[:2])
            exchanged = {change.new for word in one - two for change in changes().get(word, ())}
            assert not exchanged & (two - one), pair


def test_the_everyday_pairs_of_the_tests_are_not_generated() -> None:
    lines = (ROOT / "tests/everyday.tsv").read_text(encoding="utf-8").splitlines()
    held_out = {text for line in lines for text in line.split("\t")[1:]}
    assert not held_out & set(islice(everyday_sentences("train", 1), 100_000))


def test_a_split_that_has_no_more_sentences_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"sentence": ["the {person} is {state}."], "person": ["cook", "judge", "man"], "state": ["open", "closed", "old"]}
    rules |= {"who": ["the {person}"], "did": ["sang", "left"], "when": ["today"]}
    monkeypatch.setattr(everyday, "_RULES", rules)
    assert len({text for split in ("train", "dev", "test") for text in everyday_sentences(split, 1)}) == 9
    with pytest.raises(ValueError, match="no more everyday sentences"):
        list(everyday_pairs("train", 500, 1))
