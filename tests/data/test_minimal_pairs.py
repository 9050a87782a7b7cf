"""Minimal pairs: which change is made where, with which labels; and the word lists they are made from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pipeline.families.pairs.minimal_pairs import KINDS, MinimalPair, changes, minimal_pairs
from tools import wordnet

EXCLUDED, ONE_WAY, BOTH_WAYS = ("contradiction", "contradiction"), ("entailment", "neutral"), ("entailment", "entailment")
TURNED, NEITHER = ("neutral", "entailment"), ("neutral", "neutral")


def made(*sentences: str, kind: str | None = None) -> dict[tuple[str, str], tuple[str, str]]:
    """(premise, hypothesis) → labels."""
    pairs = minimal_pairs(sentences, 1000, seed=1)
    return {(p.premise, p.hypothesis): (p.label, p.reverse_label) for p in pairs if kind in (None, p.kind)}


@pytest.mark.parametrize(
    ("kind", "premise", "hypothesis", "labels", "also"),
    [
        ("co-hyponym", "A man is in a truck.", "A woman is in a truck.", EXCLUDED, "A woman is here now."),
        ("co-hyponym", "Two dogs are on grass.", "Two cats are on grass.", EXCLUDED, "See, two cats are here."),
        ("hypernym", "An apple is on the table.", "A fruit is on the table.", ONE_WAY, "A fruit is here now."),
        ("hypernym", "The terriers are in the snow.", "The dogs are in the snow.", ONE_WAY, "See the dogs are here."),
        ("hypernym", "A man is sprinting in the park.", "A man is running in the park.", ONE_WAY, "He is running in circles."),
        ("antonym", "The box is very heavy.", "The box is very light.", EXCLUDED, "It is a very light day."),
        ("antonym", "It was an unpublished letter.", "It was a published letter.", EXCLUDED, "A published letter is here."),
        ("synonym", "They sat on the couch.", "They sat on the sofa.", BOTH_WAYS, "He likes the sofa most."),
        ("synonym", "Nobody sat on the couch.", "Nobody sat on the sofa.", BOTH_WAYS, "He likes the sofa most."),
        ("negation", "The man is at home today.", "The man is not at home today.", EXCLUDED, ""),
        ("negation", "The man is not at home.", "The man is at home.", EXCLUDED, ""),
        ("negation", "There is a cat here.", "There is no cat here.", EXCLUDED, ""),
        ("negation", "The box is open.", "The box is not closed.", ONE_WAY, ""),
        ("phrase", "A man is singing on the stage.", "A man is singing.", ONE_WAY, ""),
        ("phrase", "She wore a red hat.", "She wore a hat.", ONE_WAY, ""),
        ("phrase", "She sold her car on Monday.", "She sold her car.", ONE_WAY, ""),
        ("phrase", "She wore a green apron.", "She wore an apron.", ONE_WAY, ""),
        ("quantifier", "All birds can fly.", "Some birds can fly.", ONE_WAY, ""),
        ("quantifier", "Some birds can fly.", "All birds can fly.", TURNED, ""),
        ("quantifier", "All of us can fly.", "None of us can fly.", EXCLUDED, ""),
        ("role swap", "A dog is chasing the boys.", "The boys are chasing a dog.", NEITHER, ""),
        ("role swap", "A dog was chasing the boys.", "The boys were being chased by a dog.", BOTH_WAYS, ""),
        ("role swap", "A dog is chasing the boys.", "A dog is being chased by the boys.", NEITHER, ""),
    ],
)
def test_a_change_and_its_labels(kind: str, premise: str, hypothesis: str, labels: tuple[str, str], also: str) -> None:
    # `also` puts the new word next to its neighbours.
    assert made(premise, *([also] if also else []), kind=kind)[premise, hypothesis] == labels


def test_where_there_is_no_wider_thing_there_is_no_narrower_one() -> None:
    pairs = made("A dog is in the park.", "See an animal is here.", kind="hypernym")
    assert pairs["No animal is in the park.", "No dog is in the park."] == ONE_WAY


def test_what_may_be_about_others_is_not_turned_round() -> None:
    swaps = made("A man is washing his dog.", kind="role swap")
    assert ("entailment", "entailment") not in swaps.values()
    pairs = made("A man and a woman are here.", "See a person and a child.", "A person is here.", kind="hypernym")
    assert not [premise for premise, _ in pairs if premise.startswith("No")]


def test_numbers_and_bounds() -> None:
    numbers = made("We saw four dogs there.", kind="number")
    assert set(numbers.values()) == {EXCLUDED}
    assert all(hypothesis.split()[2] != "four" for _, hypothesis in numbers)
    low, high = ("two", "three"), ("five", "six", "seven")
    expected = {f"at least {bound}": ONE_WAY for bound in (*low, "four")} | {f"more than {bound}": ONE_WAY for bound in low}
    expected |= {f"fewer than {bound}": ONE_WAY for bound in high} | {f"at least {bound}": EXCLUDED for bound in high}
    expected |= {f"more than {bound}": EXCLUDED for bound in ("four", *high)}
    expected |= {f"fewer than {bound}": EXCLUDED for bound in (*low, "four")}
    seen: dict[str, tuple[str, str]] = {}
    for seed in range(200):
        for pair in minimal_pairs(["We saw four dogs there."], 100, seed):
            if pair.kind == "quantifier":
                seen[pair.hypothesis[len("We saw ") : -len(" dogs there.")]] = (pair.label, pair.reverse_label)
    assert seen == expected


@pytest.mark.parametrize(
    "premise",
    [
        "No apple is on the table.",
        "Every apple is on the table.",
        "If an apple is here, eat.",
        "He ate two apple pies.",
        'He said "an apple is here".',
        "An apple isn't on the table.",
        "The Apple is on a table.",
        "An apple.",
    ],
)
def test_no_change_where_its_label_is_uncertain(premise: str) -> None:
    assert not made(
        premise, "A fruit is here now. The fruit is good. No fruit is bad. Every fruit is. Two fruit pies.", kind="hypernym"
    )


def test_a_new_word_must_have_had_the_same_neighbours() -> None:
    premise = "They sat on the couch today."
    assert not made(premise, kind="synonym")
    assert not made(premise, "He likes a sofa today.", kind="synonym")
    assert made(premise, "He likes the sofa today.", kind="synonym")


def test_the_choice_is_seeded_balanced_and_without_repeats() -> None:
    sentences = [
        f"A man is {verb} with a {colour} {noun} in the {place}."
        for verb in ("running", "walking", "sleeping")
        for colour in ("red", "blue", "green")
        for noun in ("truck", "shirt", "hat")
        for place in ("kitchen", "garden", "office")
    ]
    chosen = minimal_pairs(sentences, 90, seed=3)
    assert chosen == minimal_pairs(sentences, 90, seed=3) != minimal_pairs(sentences, 90, seed=4)
    assert len({(pair.premise, pair.hypothesis) for pair in chosen}) == len(chosen) <= 90
    counts = Counter(pair.kind for pair in chosen)
    assert max(counts.values()) <= 2 * min(counts.values()) + 1
    assert all(pair.premise in sentences and pair.premise != pair.hypothesis for pair in chosen)
    assert set(counts) <= set(KINDS) and isinstance(chosen[0], MinimalPair)


def test_further_sentences_are_for_the_kinds_that_the_others_lack() -> None:
    own = [f"She saw {number} dogs in the {place}." for number in ("two", "three", "four", "five") for place in ("park", "sea")]
    further = ["A dog is chasing the boys.", "We saw six dogs there."]
    found = minimal_pairs(own, 16, 1, further=further)
    of_kind = Counter((pair.kind, pair.premise in own) for pair in found)
    assert of_kind["role swap", False] == 3
    assert of_kind["number", True] > 2 and not of_kind["number", False]


def test_what_some_do_others_may_not_do() -> None:
    like = ["Some women are here.", "Some women are standing here.", "Most of us."]
    for first in ("Some", "Many", "Several"):
        found = made(f"{first} men are sitting in the park.", *like)
        assert "contradiction" not in {
            label[0] for (premise, new), label in found.items() if new.split()[0] == first and premise not in like
        }
    twice = minimal_pairs(["All men are sitting in the park."], 1000, 1, like=like, twice=True)
    assert not [pair for pair in twice if pair.hypothesis.startswith("Some") and pair.label == "contradiction"]


def test_a_word_before_than_is_changed_unless_there_is_more_of_it() -> None:
    assert made("My uncle is older than my aunt.", "He is younger than her.", kind="antonym")
    assert not made("She has more dogs than he has.", "Two more cats than usual.", kind="co-hyponym")


def test_two_changes_have_the_labels_that_follow_from_both() -> None:
    sentence = "A happy man is sitting on the couch."
    like = ["A sad man is sitting on a sofa.", "A person is standing on the sofa."]
    found: dict[str, tuple[str, str]] = {}
    for seed in range(60):
        pairs = minimal_pairs([sentence], 1000, seed, like=like, twice=True)
        found |= {pair.hypothesis: (pair.label, pair.reverse_label) for pair in pairs if pair.premise == sentence}
    once = {pair.hypothesis for pair in minimal_pairs([sentence], 1000, 1, like=like)}
    expected = {
        "A man is standing on the couch.": EXCLUDED,
        "A sad man is sitting on the sofa.": EXCLUDED,
        "A man is sitting on the sofa.": ONE_WAY,
        "A man is sitting.": ONE_WAY,
    }
    assert not once & set(expected)
    assert {hypothesis: found.get(hypothesis) for hypothesis in expected} == expected
    assert sentence not in found


def test_no_word_both_entails_and_excludes_another() -> None:
    labels: dict[tuple[str, str], set[str]] = {}
    for old, of_word in changes().items():
        for change in of_word:
            labels.setdefault((old, change.new), set()).add(change.labels[0])
    assert [pair for pair, found in labels.items() if len(found) > 1] == []
    # Nor does a word that is narrower than another exclude it by way of a third.
    wider = {old: {c.new for c in of_word if c.kind == "hypernym"} for old, of_word in changes().items()}

    def above(word: str) -> set[str]:
        found: set[str] = set()
        todo = {word}
        while todo:
            found |= (new := {each for one in todo for each in wider.get(one, ())} - found)
            todo = new
        return found

    excluded = {frozenset((old, c.new)) for old, of_word in changes().items() for c in of_word if c.kind == "co-hyponym"}
    assert sorted((a, b) for a, b in map(sorted, excluded) if a in above(b) or b in above(a)) == []


def test_wordnet_relations_of_a_small_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # animal > dog > terrier; "cat" is more often a verb here; "fair" and "unfair" are opposites.
    (tmp_path / "data.noun").write_text(
        "  1 licence\n"
        "00000001 03 n 01 animal 0 000 | .\n"
        "00000002 05 n 01 dog 0 001 @ 00000001 n 0000 | .\n"
        "00000003 05 n 02 terrier 0 bull_terrier 0 001 @ 00000002 n 0000 | .\n"
        "00000004 05 n 01 cat 0 001 @ 00000001 n 0000 | .\n"
        "00000005 05 n 01 Rex 0 001 @i 00000002 n 0000 | .\n"
    )
    (tmp_path / "index.noun").write_text(
        "  1 licence\nanimal n 1 0 1 1 00000001\ndog n 1 1 @ 1 1 00000002\nterrier n 1 1 @ 1 0 00000003\n"
        "cat n 1 1 @ 1 1 00000004\nrex n 1 1 @i 1 0 00000005\n"
    )
    (tmp_path / "data.adj").write_text(
        "00000010 00 a 02 just 0 fair 0 001 ! 00000011 a 0201 | .\n00000011 00 a 01 unfair 0 001 ! 00000010 a 0102 | .\n"
    )
    (tmp_path / "index.adj").write_text("fair a 1 1 ! 1 1 00000010\njust a 1 0 1 1 00000010\nunfair a 1 1 ! 1 1 00000011\n")
    for pos in ("verb", "adv"):
        (tmp_path / f"index.{pos}").write_text("cat v 1 0 1 1 00000099\n" if pos == "verb" else "")
    (tmp_path / "cntlist.rev").write_text(
        "animal%1:03:00:: 1 5\ndog%1:05:00:: 1 9\ncat%1:05:00:: 1 1\ncat%2:35:00:: 1 9\n"
        "fair%3:00:00:: 1 4\nunfair%3:00:00:: 1 2\n"
    )
    monkeypatch.setattr(wordnet, "WIDER", {"animal": 1, "dog": 1})
    wordnet.main(tmp_path, tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["wider"] == {"animal": ["dog"], "dog": ["terrier"]}
    assert found["opposite"] == [["fair", "unfair"]]
    assert "Princeton University" in found["licence"]


def test_words_that_exclude_each_other_have_no_common_synonym() -> None:
    same = {old: {c.new for c in of_word if c.kind == "synonym"} | {old} for old, of_word in changes().items()}
    excluded = [(old, c.new) for old, of_word in changes().items() for c in of_word if c.labels == EXCLUDED]
    assert [(old, new) for old, new in excluded if same.get(old, {old}) & same.get(new, {new})] == []
