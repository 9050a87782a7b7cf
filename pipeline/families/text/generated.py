"""Generated running text: short documents whose scenes follow from one another.

A document is about one subject in one place. Its first sentence says who does what and where. From sentence to sentence a few
things change: an action occurs again in other words, or another one follows, mostly of the same kind; at times the subject moves
to another place, or time passes. So a sentence shares more with its neighbours than with sentences further away, often in other
words. A hash of the first sentence determines the split of a document.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence

from pipeline.data.generated.hypotheses import one_of
from pipeline.data.generated.premises import MOST_SPACES, Split, split_of
from pipeline.data.generated.scenes import DOMAINS, Domain, Expr, Scene, clause, fits

LENGTHS = range(4, 13)
"""Sentences of a document."""
# Shares of sentences in which something changes.
_SAME_ACTION, _MOVES, _TIME_PASSES = 0.5, 0.15, 0.1
# Share of new actions that are of the same concept, such as another instrument.
_SAME_KIND = 0.4
# Shares of sentences that name something, or name it by a wider word.
_NAMES_PLACE, _NAMES_TRAIT, _WIDER = 0.6, 0.3, 0.4
# Choices that are tried for a phrase that fits the others. Nearly all fit at the first.
_TRIES = 40


def generate_documents(split: Split, documents: int, seed: int) -> Iterator[list[str]]:
    """Generate exactly `documents` documents of `LENGTHS` sentences each.

    They depend only on `split` and `seed`; a smaller request is a prefix of a larger one. No first sentence occurs twice, or in
    two splits, whatever the seeds.

    Raises:
        ValueError: the grammar has too few first sentences.
    """
    rng = random.Random(zlib.crc32(f"documents {split} {seed}".encode()))
    # A bit for each of 2²⁷ values of a hash: memory that does not grow. A first sentence whose bit is taken counts as a repeat.
    seen = bytearray(1 << 24)
    given, rejected = 0, 0
    while given < documents:
        sentences = _document(rng)
        byte, bit = divmod(zlib.crc32(sentences[0].encode()) >> 5, 8)
        if split_of(sentences[0]) != split or seen[byte] >> bit & 1:
            rejected += 1
            if rejected > 100 * (given + 100):
                raise ValueError(f"the {split} split has no more documents: {documents - given} of {documents} are missing")
            continue
        seen[byte] |= 1 << bit
        given += 1
        yield sentences


def _document(rng: random.Random) -> list[str]:
    domain = DOMAINS[0] if rng.random() < 0.75 else DOMAINS[1]
    verb = "was" if rng.random() < 0.5 else "is"
    leaf = _leaf(rng, domain.nouns)
    scene = Scene(leaf, _leaf(rng, domain.core), {name: _leaf(rng, domain.slots[name]) for name in ("trait", "place", "time")})
    _settle(rng, domain, scene)
    sentences = [_written(rng, domain, scene, ("trait", "place"), verb, definite=False)]
    for _ in range(one_of(rng, LENGTHS) - 1):
        scene = Scene(scene.noun, scene.core, dict(scene.slots))
        named: list[str] = ["trait"] if rng.random() < _NAMES_TRAIT else []
        if rng.random() < _MOVES:
            scene.slots["place"] = _leaf(rng, domain.slots["place"])
            named.append("place")
        elif rng.random() < _NAMES_PLACE:
            named.append("place")
        later = _later(domain, scene.slots["time"])
        if later and rng.random() < _TIME_PASSES:
            scene.slots["time"] = one_of(rng, later)
            named.append("time")
        if rng.random() >= _SAME_ACTION:
            scene.core = _next_action(rng, scene.core)
        _settle(rng, domain, scene)
        text = _written(rng, domain, scene, named, verb, definite=True)
        while text == sentences[-1]:
            # The scene is the same: use other words, or another action.
            text = _written(rng, domain, scene, named, verb, definite=True)
            scene.core = _next_action(rng, scene.core)
            _settle(rng, domain, scene)
        sentences.append(text)
    return sentences


def _next_action(rng: random.Random, core: Expr) -> Expr:
    """Another action, mostly of the same kind."""
    same_kind = [action for action in core.wider[0].narrower if action is not core]
    return one_of(rng, same_kind if rng.random() < _SAME_KIND else core.other[0])


def _later(domain: Domain, time: Expr) -> list[Expr]:
    """The times in later parts of the day; the lexicon has the parts in order."""
    times = domain.slots["time"]
    same_part = time.wider[0].narrower
    return [other for other in times[times.index(same_part[-1]) + 1 :] if not other.general]


def _settle(rng: random.Random, domain: Domain, scene: Scene) -> None:
    """Replace the action until it fits the place."""
    for _ in range(_TRIES):
        if fits(domain, scene):
            return
        scene.core = _leaf(rng, domain.core)
    scene.slots["place"] = one_of(rng, [place for place in domain.slots["place"] if place.tag == scene.core.tag])


def _written(rng: random.Random, domain: Domain, scene: Scene, named: Sequence[str], verb: str, *, definite: bool) -> str:
    """The scene as a sentence with some of its slots, some phrases in a wider word."""
    noun, core = (_wider(rng, expr) if definite else expr for expr in (scene.noun, scene.core))
    slots = {name: scene.slots[name] for name in domain.slots if name in named}
    if definite and "place" in slots:
        slots["place"] = _wider(rng, slots["place"])
    shown = Scene(noun, core, slots)
    if not fits(domain, shown):
        shown = Scene(scene.noun, scene.core, {name: scene.slots[name] for name in slots if name != "trait"})
    fronted = definite and rng.random() < 0.25
    text = clause(domain, shown, verb, "fronted" if fronted else "plain", definite)
    if text.count(" ") > MOST_SPACES:
        text = clause(domain, Scene(scene.noun, scene.core, {}), verb, "plain", definite)
    return text


def _wider(rng: random.Random, expr: Expr) -> Expr:
    return one_of(rng, expr.wider) if expr.wider and rng.random() < _WIDER else expr


def _leaf(rng: random.Random, exprs: Sequence[Expr]) -> Expr:
    return one_of(rng, [expr for expr in exprs if not expr.general])
