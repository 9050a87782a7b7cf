"""Word lists of the generated NLI source, from words.json. The grammar is in `pipeline.data.generated`.

The labels depend on these properties of the lists:

* every leaf of a concept entails each general phrase of the concept, and the general phrases of a concept mean the same;
* the concepts of one group exclude each other, both their leaves and their general phrases;
* concepts of different groups are independent: neither entails or excludes the other;
* the concepts of one group have the same number of leaves. So replacing one by another does not change word frequencies, and
  a hypothesis does not reveal its label.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Concept(NamedTuple):
    """General phrases, the leaves under them, and a tag that restricts combinations with other concepts."""

    general: tuple[str, ...]
    leaves: tuple[str, ...]
    tag: str = "any"


Group = tuple[Concept, ...]

_WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))


def _groups(name: str) -> tuple[Group, ...]:
    return tuple(
        tuple(Concept(tuple(each["general"]), tuple(each["leaves"]), each.get("tag", "any")) for each in group)
        for group in _WORDS[name]
    )


IRREGULAR_PLURALS: dict[str, str] = _WORDS["irregular_plurals"]
COUNTS: tuple[str, ...] = tuple(_WORDS["counts"])
QUANTIFIERS: dict[str, tuple[str, ...]] = {name: tuple(wordings) for name, wordings in _WORDS["quantifiers"].items()}
"""Quantifier → wordings for "{group}". A wording contains the verb that agrees with it: {be} for plural, {is} for singular."""

# Nouns ("singular|plural" if they are phrases): the broadest words for the subjects, and their concepts.
PERSON_BROAD, PEOPLE = tuple[str, ...](_WORDS["person_broad"]), _groups("people")
ANIMAL_BROAD, ANIMALS = tuple[str, ...](_WORDS["animal_broad"]), _groups("animals")
THING_BROAD, THINGS = tuple[str, ...](_WORDS["thing_broad"]), _groups("things")
# Actions and states of the subject.
ACTIONS, ANIMAL_ACTIONS, STATES = _groups("actions"), _groups("animal_actions"), _groups("states")
# Place, time and company.
PLACES, ANIMAL_PLACES, THING_PLACES = _groups("places"), _groups("animal_places"), _groups("thing_places")
TIMES, DAYS, COMPANY = _groups("times"), _groups("days"), _groups("company")
# Properties of the subject.
GARMENTS: tuple[Group, ...] = tuple(
    tuple(
        Concept((f"in a {colour} {item}", f"with a {colour} {item} on"), tuple(f"in {shade} {item}" for shade in shades))
        for colour, shades in _WORDS["shades"].items()
    )
    for item in _WORDS["garments"]
)
TRAITS, COATS, MATERIALS, ORIGINS = _groups("traits"), _groups("coats"), _groups("materials"), _groups("origins")
