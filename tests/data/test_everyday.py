"""Pairs of everyday sentences: labels that agree with the words, splits, and what is not in them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import NamedTuple

import pytest

from pipeline.config.data_params import test_set_names as names_of_tests
from pipeline.config.load import load_params
from pipeline.data.generated.everyday import everyday_sentences
from pipeline.data.generated.premises import Split, split_of
from pipeline.families.pairs.everyday import everyday_pairs
from pipeline.families.pairs.sources import read_sources
from pipeline.families.pairs.word_changes import changes
from tests.conftest import PLAIN, ROOT


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


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_test_sets_are_those_that_the_parameters_name(share: float) -> None:
    data = load_params(PLAIN).data
    generated = data.generated.model_copy(update={"train": 40, "dev": 20, "test": 30, "everyday_share": share})
    data = data.model_copy(update={"generated": generated})
    sources = read_sources(data)
    assert tuple(sources.tests) == names_of_tests(data)
    assert sources.dev is not None
    assert [sum(batch.num_rows for batch in rows) for rows in (*sources.train, sources.dev, *sources.tests.values())] == [
        40,
        20,
        *[30] * len(sources.tests),
    ]
