"""The changes of single words that minimal pairs are made of (`pairs.minimal_pairs`), from `pipeline.data.lexicon`."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pipeline.data.lexicon
from pipeline.config.types import LabelName

Kind = Literal["antonym", "co-hyponym", "hypernym", "synonym", "negation", "number", "quantifier", "phrase", "role swap"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BOTH_WAYS: tuple[LabelName, LabelName] = ("entailment", "entailment")
ONE_WAY: tuple[LabelName, LabelName] = ("entailment", "neutral")
TURNED: tuple[LabelName, LabelName] = ("neutral", "entailment")
NEITHER: tuple[LabelName, LabelName] = ("neutral", "neutral")
EXCLUDED: tuple[LabelName, LabelName] = ("contradiction", "contradiction")
EVERYDAY, _WORDNET = (
    json.loads((Path(pipeline.data.lexicon.__file__).parent / name).read_text(encoding="utf-8"))
    for name in ("everyday.json", "wordnet.json")
)


class Change(NamedTuple):
    """A word or phrase that may stand for another, and the labels of both directions that follow."""

    kind: Kind
    new: str
    labels: tuple[LabelName, LabelName]
    noun: bool
    """Whether both are nouns that can be counted."""


@cache
def changes() -> dict[str, list[Change]]:
    """Word → what may stand in its place."""
    own, plurals = EVERYDAY, EVERYDAY["plurals"]
    found: dict[str, dict[str, Change]] = defaultdict(dict)

    def add(kind: Kind, old: str, new: str, labels: tuple[LabelName, LabelName], *, noun: bool = False) -> None:
        forms = [(old, new), (_plural(old, plurals), _plural(new, plurals))] if noun else [(old, new)]
        for old_form, new_form in forms:
            found[old_form].setdefault(new_form, Change(kind, new_form, labels, noun))

    for key, noun in (("nouns_that_exclude", True), ("words_that_exclude", False)):
        for group in own[key]:
            for old, new in permutations(group, 2):
                add("co-hyponym", old, new, EXCLUDED, noun=noun)
    # Some opposites of WordNet do not exclude each other.
    for pair in (*own["opposite"], *(pair for pair in _WORDNET["opposite"] if pair not in own["not_opposite"])):
        for old, new in permutations(pair):
            add("antonym", old, new, EXCLUDED)
    for pair in own["same"]:
        for old, new in permutations(pair):
            add("synonym", old, new, BOTH_WAYS)
    by_hand = {narrow for narrower in own["wider"].values() for narrow in narrower}
    for wide, narrower in own["wider"].items():
        for narrow in narrower:
            add("hypernym", narrow, wide, ONE_WAY, noun=True)
    for wide, narrower in _WORDNET["wider"].items():
        for narrow in set(narrower) - by_hand:
            add("hypernym", narrow, wide, ONE_WAY, noun=True)
    for wide, narrower in own["wider_words"].items():
        for narrow in narrower:
            add("hypernym", narrow, wide, ONE_WAY)
    return {old: sorted(of_word.values()) for old, of_word in sorted(found.items())}


def _plural(noun: str, irregular: dict[str, str]) -> str:
    if noun in irregular:
        return irregular[noun]
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"
