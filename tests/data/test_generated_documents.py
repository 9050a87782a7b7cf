"""Generated running text: how many, which split, and whether neighbours belong together."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise

import numpy as np
import pytest

from pipeline.data.generated.premises import MOST_SPACES, Split
from pipeline.families.text.generated import generate_documents

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def test_a_smaller_request_is_the_beginning_of_a_larger_one() -> None:
    large = list(generate_documents("train", 300, 1))
    assert len(large) == 300
    assert list(generate_documents("train", 25, 1)) == large[:25]
    # All lengths from 4 to 12, as numbers here so that a change of LENGTHS fails.
    assert {len(document) for document in large} == set(range(4, 13))
    assert list(generate_documents("train", 25, 2)) != large[:25]


def test_documents_are_the_recorded_ones_in_any_process() -> None:
    assert hashlib.sha256(repr(list(generate_documents("dev", 20, 3))).encode()).hexdigest()[:12] == "dc23a4b15971"


def test_a_first_sentence_is_in_one_split_and_once() -> None:
    openings: dict[Split, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for seed in (1, 2):
            first = [document[0] for document in generate_documents(split, 600, seed)]
            assert len(set(first)) == 600
            openings[split] |= set(first)
    assert not openings["train"] & openings["dev"]
    assert not openings["test"] & (openings["train"] | openings["dev"])


def test_sentences_are_short_of_one_tense_and_differ() -> None:
    for document in generate_documents("train", 500, 4):
        assert len({" was " in sentence for sentence in document}) == 1
        assert all(sentence.count(" ") <= MOST_SPACES and sentence.endswith(".") for sentence in document)
        assert all(a != b for a, b in pairwise(document))


def overlap(first: str, second: str) -> float:
    """Of the words of two sentences, the share that is in both."""
    a, b = (set(sentence.lower().strip(".").split()) for sentence in (first, second))
    return len(a & b) / len(a | b)


def test_neighbours_share_most_words() -> None:
    documents = list(generate_documents("train", 600, 5))
    apart = {
        distance: np.mean([overlap(d[i], d[i + distance]) for d in documents for i in range(len(d) - distance)])
        for distance in (1, 4)
    }
    others = np.mean([overlap(a[0], b[1]) for a, b in pairwise(documents)])
    assert apart[1] > apart[4] + 0.05 > others + 0.1


def test_word_overlap_finds_fewer_than_60_percent_of_next_sentences() -> None:
    # Candidates are mostly from other documents.
    rng = random.Random(9)
    pairs = [rng.choice(list(pairwise(document))) for document in generate_documents("train", 64 * 20, 9)]
    right = 0.0
    for start in range(0, len(pairs), 64):
        group = pairs[start : start + 64]
        for k, (sentence, _) in enumerate(group):
            scores = np.array([overlap(sentence, following) for _, following in group])
            # Equal scores share the point.
            best = scores == scores.max()
            right += best[k] / best.sum()
    assert 0.2 < right / len(pairs) < 0.6


def test_more_documents_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = generate_documents("train", 1, 1)
    monkeypatch.setattr("pipeline.families.text.generated._document", lambda _: first)
    with pytest.raises(ValueError, match="the train split has no more documents: 1 of 2 are missing"):
        list(generate_documents("train", 2, 1))
