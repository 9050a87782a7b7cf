"""Hypotheses with a wanted label: the relations between two scenes that give each label under each quantifier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from pipeline.data.generated.premises import MOST_SPACES, Premise
from pipeline.data.generated.scenes import LEVELS, Expr, Scene, clause, fits, group_clause, implies, noun_phrase
from pipeline.data.lexicon import COUNTS, QUANTIFIERS

Relation = Literal["widen", "alter", "add", "narrow", "loosen"]
T = TypeVar("T")
Hypothesis = tuple[str, bool]
"""A hypothesis, and whether it entails its premise."""

LABELS = ("entailment", "neutral", "contradiction")
_E, _N, _C = LABELS
_GENERAL_SHARE = 0.6  # share of general phrases among those that determine the label
_WIDEN_SHARE = 0.45  # share of widened phrases among the others
_NEGATED_SHARE = 0.25


def _pick(rng: random.Random, levels: tuple[tuple[Expr, ...], tuple[Expr, ...]]) -> Expr:
    return one_of(rng, levels[rng.random() < _GENERAL_SHARE])


def one_of(rng: random.Random, items: Sequence[T]) -> T:
    """One of the items, each with the same probability."""
    return items[int(rng.random() * len(items))]


def _maybe_wider(rng: random.Random, expr: Expr, share: float) -> Expr:
    return one_of(rng, expr.wider) if expr.wider and rng.random() < share else expr


def _narrowed(rng: random.Random, premise: Premise, live: Sequence[str]) -> Scene:
    """The premise's scene with one more fact, or with one fact in more detail. "none" of the premise implies "none" of this."""
    scene, domain = premise.scene, premise.domain
    core, slots = scene.core, dict(scene.slots)
    absent = [name for name in live if name not in slots]
    if absent and (not core.narrower or rng.random() < 0.6):
        name = one_of(rng, absent)
        slots[name] = _pick(rng, LEVELS[id(domain.slots[name])])
    elif core.narrower:
        core = one_of(rng, core.narrower)
    return Scene(scene.noun, core, slots)


def _focus(rng: random.Random, premise: Premise, relation: Relation, live: Sequence[str]) -> tuple[str, Expr] | None:
    """The slot that determines the label ("" for the predicate) and its new phrase; None if no phrase can be added."""
    scene, domain = premise.scene, premise.domain
    core = scene.core
    if relation != "add":
        present = [name for name in live if name in scene.slots]
        name = "" if not present or rng.random() < 0.4 else one_of(rng, present)
        old = scene.slots[name] if name else core
        return name, _maybe_wider(rng, old, _GENERAL_SHARE) if relation == "widen" else _pick(rng, old.other)
    options = [name for name in live if name not in scene.slots]
    if core.narrower or core.outside[0]:
        options += [""] * (2 if options else 1)
    if not options:
        return None
    name = one_of(rng, options)
    if name:
        return name, _pick(rng, LEVELS[id(domain.slots[name])])
    return name, one_of(rng, core.narrower) if core.narrower else _pick(rng, core.outside)


def _changed(rng: random.Random, premise: Premise, relation: Relation, live: Sequence[str], noun: bool) -> Scene | None:
    """A scene in this relation to the premise's scene; None if it does not work out.

    Only the slots in `live` may differ, and the noun may become wider if `noun` is true. The slots that do not determine the
    label are kept, widened or dropped in the same way for "widen", "alter" and "add".
    """
    scene, domain = premise.scene, premise.domain
    if relation == "narrow":
        candidate = _narrowed(rng, premise, live)
    elif relation == "loosen":
        # Without one fact; neutral under "none", because only that fact may be false.
        present = [name for name in live if name in scene.slots]
        if not present:
            return None
        dropped = one_of(rng, present)
        candidate = Scene(scene.noun, scene.core, {name: e for name, e in scene.slots.items() if name != dropped})
    else:
        focus = _focus(rng, premise, relation, live)
        if focus is None:
            return None
        name, new = focus
        kept = [slot for slot in live if slot in scene.slots and slot != name]
        room = (rng.random() < 0.4) + (rng.random() < 0.75) - bool(name)
        while len(kept) > max(room, 0):
            kept.pop(int(rng.random() * len(kept)))
        slots = {slot: e for slot, e in scene.slots.items() if slot not in live}
        slots |= {slot: _maybe_wider(rng, scene.slots[slot], _WIDEN_SHARE) for slot in kept}
        if name:
            slots[name] = new
        core = _maybe_wider(rng, scene.core, _WIDEN_SHARE) if name else new
        candidate = Scene(_maybe_wider(rng, scene.noun, _WIDEN_SHARE) if noun else scene.noun, core, slots)
    if not fits(domain, candidate):
        return None
    candidate.slots = {name: candidate.slots[name] for name in domain.slots if name in candidate.slots}
    return candidate


# `_TABLE`: premise quantifier → hypothesis quantifier → label → the relations of the two scenes that give the label.
_ALL: dict[str, dict[str, tuple[Relation, ...]]] = {
    "all": {_E: ("widen",), _N: ("add",), _C: ("alter",)},
    "some": {_E: ("widen",), _N: ("add",), _C: ("alter",)},
    "none": {_E: ("alter",), _N: ("add",), _C: ("widen",)},
    "not all": {_E: ("alter",), _N: ("add",), _C: ("widen",)},
}
_TABLE: dict[str, dict[str, dict[str, tuple[Relation, ...]]]] = {
    "all": _ALL,
    "none": {
        "all": {_N: ("loosen", "alter"), _C: ("narrow",)},
        "some": {_N: ("loosen", "alter"), _C: ("narrow",)},
        "none": {_E: ("narrow",), _N: ("loosen", "alter")},
        "not all": {_E: ("narrow",), _N: ("loosen", "alter")},
    },
    "some": {
        "all": {_N: ("widen", "add"), _C: ("alter",)},
        "some": {_E: ("widen",), _N: ("add", "alter")},
        "none": {_N: ("add", "alter"), _C: ("widen",)},
        "not all": {_E: ("alter",)},
    },
}


def _single(rng: random.Random, premise: Premise, label: str) -> Hypothesis | None:
    domain = premise.domain
    negated = rng.random() < _NEGATED_SHARE
    relation = one_of(rng, _ALL["none" if negated else "all"][label])
    # "The tall nurse is not ..." presupposes the nurse's height, so under negation the subject must not change.
    live = domain.adverbials if negated else tuple(domain.slots)
    scene = _changed(rng, premise, relation, live, True)
    if scene is None:
        return None
    verb = premise.verbs[1]
    if negated:
        frame = "false" if rng.random() < 0.4 else "plain"
        return clause(domain, scene, verb if frame == "false" else f"{verb} not", frame, True), False
    frames = ("plain", "plain", "fronted", "true", "there") if domain.existential else ("plain", "plain", "true")
    frame = one_of(rng, frames)
    return clause(domain, scene, verb, frame, frame != "there" and rng.random() < 0.65), implies(scene, premise.scene)


def _quantified(rng: random.Random, premise: Premise, label: str) -> Hypothesis | None:
    table = _TABLE[premise.mode]
    quantifier = one_of(rng, [q for q in table if label in table[q]])
    live = [name for name in premise.domain.adverbials if name not in premise.domain.single_only]
    relation = one_of(rng, table[quantifier][label])
    scene = _changed(rng, premise, relation, live, False)
    if scene is None:
        return None
    plural = noun_phrase(premise.domain, scene, True)
    counted = bool(premise.count) and rng.random() < 0.5
    group = f"the {COUNTS[premise.count]} {plural}" if counted else f"the {plural}"
    form = one_of(rng, QUANTIFIERS[quantifier])
    entails = implies(scene, premise.scene) and (quantifier, premise.mode) in {("all", "all"), ("all", "some"), ("some", "some")}
    if premise.mode == "none":
        entails = relation == "alter" if quantifier == "all" else quantifier == "none" and implies(premise.scene, scene)
    # Without the number, the hypothesis says less of the group than the premise.
    entails = entails and counted == bool(premise.count)
    return group_clause(premise.domain, scene, form, group, premise.verbs, rng.random() < 0.2), entails


def _numbered(rng: random.Random, premise: Premise, label: str) -> Hypothesis | None:
    count = premise.count
    raised = label == _C and rng.random() < 0.6
    kind = one_of(rng, ("", "at least ", "more than "))
    if raised:
        # A larger number contradicts the premise only if the scenes are identical.
        scene, low, high = premise.scene, count + (kind != "more than "), count + 3
    else:
        relation: Relation = "widen" if label == _E else "add" if label == _N else "alter"
        live = [name for name in premise.domain.adverbials if name not in premise.domain.single_only]
        changed = _changed(rng, premise, relation, live, True)
        if changed is None:
            return None
        low = count if not kind else max(2, count - 3)
        scene, high = changed, count - (kind == "more than ")
    number = low + int(rng.random() * (high - low + 1))
    form = f"{kind}{COUNTS[number]} {noun_phrase(premise.domain, scene, True)} {{be}}"
    # The premise says how many exactly, so "at least" and "more than" do not entail it.
    entails = not kind and number == count and implies(scene, premise.scene)
    return group_clause(premise.domain, scene, form, "", premise.verbs, rng.random() < 0.2), entails


def write_hypothesis(rng: random.Random, premise: Premise, label: str) -> Hypothesis | None:
    """A hypothesis with this label; None if twelve attempts give none that fits and is not too long."""
    write = {"single": _single, "number": _numbered}.get(premise.mode, _quantified)
    for _ in range(12):
        written = write(rng, premise, label)
        if written is not None and written[0] != premise.text and written[0].count(" ") <= MOST_SPACES:
            return written
    return None
