"""A probe: premises with two hypotheses that differ in a phrase or in word order, of which the premise entails one.

The sentences come from the grammar's word lists, so their relations are known.

The items of a phenomenon alternate between two halves: active and passive premise, one pole and the other, "the" and "no", "more"
and "fewer", without and with "not". So a model that always prefers one of the two phrases gets 50 %. Only `hypernym` can be
answered without the premise: a wider noun is the likelier one after "the", a narrower one after "no".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from pipeline.data.generated.scenes import DOMAINS, Expr, Scene, clause, noun_phrase
from pipeline.data.lexicon import COUNTS

Phenomenon = Literal["role swap", "antonym", "hypernym", "number", "negation"]
PHENOMENA: tuple[Phenomenon, ...] = get_args(Phenomenon)
MOST = 5_000
"""Items of one phenomenon; the word lists give many more."""

# Verbs that need an agent and a patient. Swapping the two persons never gives an entailed sentence.
_VERBS = (
    *(("following", "followed"), ("chasing", "chased"), ("helping", "helped"), ("watching", "watched"), ("calling", "called")),
    *(("photographing", "photographed"), ("carrying", "carried"), ("teaching", "taught"), ("interviewing", "interviewed")),
    ("warning", "warned"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """A premise and its two hypotheses."""

    phenomenon: Phenomenon
    premise: str
    entailed: str
    other: str
    """The premise does not entail it."""


def probe(items: int, seed: int = 1) -> Iterator[Item]:
    """`items` different items of each phenomenon, one phenomenon after the other.

    Raises:
        ValueError: not 1 to `MOST` items.
    """
    if not 1 <= items <= MOST:
        raise ValueError(f"got {items}; write 1 to {MOST:,}")
    for phenomenon in PHENOMENA:
        rng = random.Random(f"probe {phenomenon} {seed}")
        unique_items: dict[tuple[str, str], Item] = {}
        while len(unique_items) < items:
            texts = _WRITERS[phenomenon](rng, len(unique_items) % 2 == 1)
            unique_items.setdefault(texts[:2], Item(phenomenon, *texts))
        yield from unique_items.values()


def _role_swap(rng: random.Random, turned: bool) -> tuple[str, str, str]:
    people = _leaves(DOMAINS[0].nouns)
    doer = rng.choice(people)
    receiver = rng.choice([noun for noun in people if noun.wider[0] is not doer.wider[0]])
    active, passive = rng.choice(_VERBS)
    given = _said(doer, f"is {active} the {receiver.text}"), _said(receiver, f"is being {passive} by the {doer.text}")
    swapped = _said(doer, f"is being {passive} by the {receiver.text}"), _said(receiver, f"is {active} the {doer.text}")
    # Passive for active, or active for passive.
    if turned:
        return given[0], given[1], swapped[0]
    return given[1], given[0], swapped[1]


def _antonym(rng: random.Random, turned: bool) -> tuple[str, str, str]:
    domain = rng.choice(DOMAINS[:2])
    # Without pairs that share a word, such as "very tall" and "tall", or "eighty-year-old" and "old".
    traits = [
        (leaf, general, opposite)
        for leaf in _leaves(domain.slots["trait"])
        for general in leaf.wider
        for opposite in leaf.other[1]
        if not (leaf.post or general.post or opposite.post)
        and not any(e.text.split("-")[0] in leaf.text for e in (general, opposite))
    ]
    noun, core = rng.choice(_leaves(domain.nouns)), rng.choice(domain.core)
    poles = sorted({tuple(sorted((general.text, opposite.text))) for _, general, opposite in traits})
    entailed_pole = rng.choice(poles)[turned]
    scenes = [Scene(noun, core, {"trait": trait}) for trait in rng.choice([t for t in traits if t[1].text == entailed_pole])]
    premise, entailed, other = (clause(domain, scene, "is", "plain", True) for scene in scenes)
    return premise, entailed, other


def _hypernym(rng: random.Random, turned: bool) -> tuple[str, str, str]:
    domain = rng.choice(DOMAINS[:2])
    noun = rng.choice([e for e in domain.nouns if e.narrower and not e.heavy])
    core = rng.choice(domain.core)
    # The broadest nouns are those without a list of narrower ones.
    broad, leaf = rng.choice([e for e in noun.wider if not e.narrower]), rng.choice(noun.narrower)
    # "A scientist dances" entails that an adult dances; "no scientist dances" entails that no chemist dances.
    if not turned:
        return _said(noun, f"is {core.text}"), _said(broad, f"is {core.text}"), _said(leaf, f"is {core.text}")
    premise, entailed, other = (f"No {e.text} is {core.text}." for e in (noun, leaf, broad))
    return premise, entailed, other


def _number(rng: random.Random, turned: bool) -> tuple[str, str, str]:
    domain = rng.choice(DOMAINS[:2])
    scene = Scene(rng.choice(_leaves(domain.nouns)), rng.choice(domain.core), {})
    # The bound first, so that it does not say which of the two is entailed.
    bound, distance = rng.randrange(6, 15), rng.randrange(1, 4)
    count = bound - distance if turned else bound + distance
    entailed, other = ("Fewer", "More") if turned else ("More", "Fewer")
    rest = f"{noun_phrase(domain, scene, True)} are {scene.core.text}."
    return f"Exactly {COUNTS[count]} {rest}", f"{entailed} than {COUNTS[bound]} {rest}", f"{other} than {COUNTS[bound]} {rest}"


def _negation(rng: random.Random, turned: bool) -> tuple[str, str, str]:
    domain = rng.choice(DOMAINS[:2])
    noun, core = rng.choice(_leaves(domain.nouns)), rng.choice(_leaves(domain.core))
    wide, excluded = rng.choice(core.wider), rng.choice(core.other[1])
    premise = _said(noun, f"is {core.text}")
    # "Sprints" entails "is running" and "is not sleeping". A model that ignores "not" is right in one half of the items only.
    if not turned:
        return premise, _said(noun, f"is {wide.text}"), _said(noun, f"is {excluded.text}")
    return premise, _said(noun, f"is not {excluded.text}"), _said(noun, f"is not {wide.text}")


def _leaves(exprs: tuple[Expr, ...]) -> list[Expr]:
    return [e for e in exprs if not e.general]


def _said(noun: Expr, rest: str) -> str:
    return f"The {noun.text} {rest}."


_WRITERS: dict[Phenomenon, Callable[[random.Random, bool], tuple[str, str, str]]] = {
    "role swap": _role_swap,
    "antonym": _antonym,
    "hypernym": _hypernym,
    "number": _number,
    "negation": _negation,
}
