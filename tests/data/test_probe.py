"""The probe: what each kind of item turns on, checked against the word lists and not against the code that wrote it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from pipeline.data import lexicon
from pipeline.data.generated.probe import MOST, PHENOMENA, Item, probe
from pipeline.data.lexicon import Concept, Group

ITEMS = list(probe(150))


def of(phenomenon: str) -> list[Item]:
    return [item for item in ITEMS if item.phenomenon == phenomenon]


def words(sentence: str) -> Counter[str]:
    return Counter(re.findall(r"[a-z-]+", sentence.lower()))


def concepts(*lists: tuple[Group, ...]) -> list[Concept]:
    return [concept for groups in lists for group in groups for concept in group]


def test_every_kind_has_its_items_none_twice_and_the_same_for_a_seed() -> None:
    assert [name for name, _ in pairwise([*(item.phenomenon for item in ITEMS), ""]) if name] == [
        name for name in PHENOMENA for _ in range(150)
    ]
    assert len({(item.premise, item.entailed) for item in ITEMS}) == len(ITEMS)
    assert list(probe(150)) == ITEMS
    assert list(probe(150, 2)) != ITEMS
    for item in ITEMS:
        assert len({item.premise, item.entailed, item.other}) == 3


def test_a_role_swap_has_the_same_words_and_the_persons_exchanged() -> None:
    forms = Counter[str]()
    for item in of("role swap"):
        active, passive = r"The (.+) is (\w+ing) the (.+)\.", r"The (.+) is being (\w+) by the (.+)\."
        passive_premise = re.fullmatch(passive, item.premise) is not None
        given = re.fullmatch(passive if passive_premise else active, item.premise)
        entailed, other = (re.fullmatch(active if passive_premise else passive, text) for text in (item.entailed, item.other))
        assert given
        assert entailed
        assert other
        # "A follows B" is "B is followed by A", and not "A is followed by B".
        assert (entailed[1], entailed[3]) == (given[3], given[1])
        assert (other[1], other[3]) == (given[1], given[3])
        assert entailed[2] == other[2]
        assert words(item.entailed) == words(item.other)
        forms[str(passive_premise)] += 1
    assert set(forms.values()) == {75}


def test_an_antonym_is_the_other_end_of_the_same_trait() -> None:
    ends = [group for groups in (lexicon.TRAITS, lexicon.COATS) for group in groups]
    first = Counter[bool]()
    for item in of("antonym"):
        (yes,), (no,) = words(item.entailed) - words(item.other), words(item.other) - words(item.entailed)
        (group,) = [g for g in ends if any(yes in c.general for c in g) and any(no in c.general for c in g)]
        (concept,) = [c for c in group if yes in c.general]
        assert no not in concept.general
        leaf = " ".join((words(item.premise) - words(item.entailed)).elements())
        assert any(set(one.split()) == set(leaf.split()) for one in concept.leaves), item
        assert not {yes, no} & words(item.premise).keys()
        first[yes < no] += 1
    assert first == {True: 75, False: 75}


def test_a_hypernym_is_entailed_its_hyponym_is_not_and_no_reverses_it() -> None:
    nouns = concepts(lexicon.PEOPLE, lexicon.ANIMALS)
    broad = {text.split("|")[0] for text in (*lexicon.PERSON_BROAD, *lexicon.ANIMAL_BROAD)}
    starts = Counter[str]()
    for item in of("hypernym"):
        said = [re.fullmatch(r"(The|No) (.+?) is (.+)\.", text) for text in (item.premise, item.entailed, item.other)]
        (start, noun, core), entailed, other = (one.groups() for one in said if one)
        assert {entailed[0], other[0]} == {start}
        assert {entailed[2], other[2]} == {core}
        wider, narrower = (entailed[1], other[1]) if start == "The" else (other[1], entailed[1])
        (concept,) = [one for one in nouns if noun in {text.split("|")[0] for text in one.general}]
        assert narrower in concept.leaves
        assert wider in broad
        starts[start] += 1
    assert starts == {"The": 75, "No": 75}


def test_numbers_are_compared_as_the_words_say() -> None:
    bounds: dict[str, list[int]] = {"More": [], "Fewer": []}
    for item in of("number"):
        given = re.fullmatch(r"Exactly ([a-z-]+) (.+)", item.premise)
        assert given
        said = [re.fullmatch(r"(More|Fewer) than ([a-z-]+) (.+)", text) for text in (item.entailed, item.other)]
        for found, expected in zip(said, (True, False), strict=True):
            assert found
            count, bound = lexicon.COUNTS.index(given[1]), lexicon.COUNTS.index(found[2])
            assert ((count > bound) if found[1] == "More" else (count < bound)) is expected, item
            assert found[3] == given[2]
        assert said[0]
        bounds[said[0][1]].append(lexicon.COUNTS.index(said[0][2]))
    assert len(bounds["More"]) == len(bounds["Fewer"]) == 75
    # The bound alone does not say which it is.
    assert set(bounds["More"]) == set(bounds["Fewer"]) == set(range(6, 15))


def test_negation_decides_between_the_same_two_predicates() -> None:
    predicates = [group for groups in (lexicon.ACTIONS, lexicon.ANIMAL_ACTIONS) for group in groups]
    negated = Counter[bool]()
    for item in of("negation"):
        said = [re.fullmatch(r"The (.+?) is (not )?(.+)\.", text) for text in (item.premise, item.entailed, item.other)]
        (noun, no, done), (noun_1, no_1, entailed), (noun_2, no_2, other) = (one.groups() for one in said if one)
        assert no is None
        assert (noun, no_1) == (noun_1, no_2) == (noun_2, no_1)
        same, excluded = (other, entailed) if no_1 else (entailed, other)
        # What is done, and something of the same group, which excludes it.
        assert any(
            done in one.leaves and same in one.general and any(excluded in x.general for x in group if x is not one)
            for group in predicates
            for one in group
        ), item
        negated[no_1 is not None] += 1
    assert negated == {True: 75, False: 75}


def test_the_lists_give_as_many_items_as_one_may_ask_for() -> None:
    assert len({(item.premise, item.entailed) for item in probe(MOST)}) == MOST * len(PHENOMENA)
