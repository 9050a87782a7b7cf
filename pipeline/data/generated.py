"""Generated NLI rows: a small grammar over `pipeline.data.lexicon`, whose labels follow from how a row was made.

A premise is a scene (noun, predicate, optional slots) under a quantifier. A hypothesis draws its quantifier first,
whatever its label, and then takes the relation between the two scenes that gives the wanted label: "all" and "none"
swap the roles of generalising and altering, so negation says nothing about the label. Altered and added phrases are
drawn like the generalised ones, so the hypothesis alone says little too.

Premises never repeat: each family of premises numbers its sentences in mixed radix, and a seeded bijection walks
through the numbers; different numbers spell different sentences. A hash of the sentence itself picks its split.
"""

import random
import zlib
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from typing import Literal, TypeVar

from pipeline.data import lexicon
from pipeline.data.lexicon import COUNTS, QUANTIFIERS, Concept, Group

Split = Literal["train", "dev", "test"]
Relation = Literal["widen", "alter", "add", "narrow", "loosen"]
Row = tuple[str, str, str]
T = TypeVar("T")

LABELS = ("entailment", "neutral", "contradiction")
_E, _N, _C = LABELS
_GENERAL_SHARE = 0.6  # of the phrases that carry the label
_WIDEN_SHARE = 0.45  # of the other phrases
_NEGATED_SHARE = 0.25
_MOST_SPACES = 25  # in a sentence of 26 words
_SIZES = (0.08, 0.38, 0.4, 0.14)  # share of premises by their number of optional slots
_POSTMODIFIER = (" who ", " that ", " of ", " with ", " for ", " to ")
_POST_STARTS = ("in ", "of ", "with ", "made ", "that ", "from ", "on ", "by ", "next ", "under ")


@dataclass(eq=False, slots=True)
class Expr:
    """One phrase and the phrases that stand in a known relation to it."""

    text: str
    plural: str
    tag: str
    general: bool
    heavy: bool
    post: bool
    wider: tuple["Expr", ...] = ()
    narrower: tuple["Expr", ...] = ()
    other: tuple[tuple["Expr", ...], tuple["Expr", ...]] = ((), ())  # (leaves, general phrases)
    outside: tuple[tuple["Expr", ...], tuple["Expr", ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Domain:
    """What can be said of one kind of subject; slots are in sentence order, adverbials after the rest."""

    nouns: tuple[Expr, ...]
    core: tuple[Expr, ...]
    slots: dict[str, tuple[Expr, ...]]
    adverbials: tuple[str, ...]
    single_only: tuple[str, ...]  # slots that do not read well of several subjects
    max_posts: int
    existential: bool


@dataclass(slots=True)
class Scene:
    """What a sentence is about, as expressions not yet worded."""

    noun: Expr
    core: Expr
    slots: dict[str, Expr]


@dataclass(slots=True)
class Premise:
    """A worded premise and what its hypotheses are made of."""

    domain: Domain
    mode: str
    scene: Scene
    count: int
    verbs: tuple[str, str]  # plural, singular
    text: str


@dataclass(slots=True)
class Family:
    """Premises of one shape; `radices` count the choices that together spell one sentence."""

    domain: Domain
    mode: str
    names: tuple[str, ...]
    frames: tuple[str, ...]
    radices: tuple[int, ...]
    weight: float
    size: int
    used: int = field(default=0)


def _plural(noun: str) -> str:
    head, _, last = noun.rpartition(" ")
    if last in lexicon.IRREGULAR_PLURALS:
        last = lexicon.IRREGULAR_PLURALS[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = f"{last[:-1]}ies"
    else:
        last += "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{head} {last}".strip()


def _expr(text: str, concept: Concept, general: bool) -> Expr:
    singular, _, plural = text.partition("|")
    heavy = any(word in singular for word in _POSTMODIFIER)
    return Expr(singular, plural or _plural(singular), concept.tag, general, heavy, singular.startswith(_POST_STARTS))


def _by_level(exprs: Sequence[Expr]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    return tuple(e for e in exprs if not e.general), tuple(e for e in exprs if e.general)


def _expressions(groups: Sequence[Group], broad: Sequence[str] = ()) -> tuple[Expr, ...]:
    top = tuple(_expr(text, Concept((), ()), True) for text in broad)
    spelled = [
        [([_expr(t, c, False) for t in c.leaves], [_expr(t, c, True) for t in c.general]) for c in group] for group in groups
    ]
    flat = [[e for leaves, general in group for e in (*leaves, *general)] for group in spelled]
    for g, group in enumerate(spelled):
        outside = _by_level([e for h, exprs in enumerate(flat) if h != g for e in exprs])
        for leaves, general in group:
            own = {id(e) for e in (*leaves, *general)}
            other = _by_level([e for e in flat[g] if id(e) not in own])
            for e in (*leaves, *general):
                e.other, e.outside = other, outside
            for leaf in leaves:
                leaf.wider = (*general, *top)
            for e in general:
                e.wider = (*(x for x in general if x is not e), *top)
                e.narrower = tuple(leaves)
    return tuple(e for group in flat for e in group)


def _domains() -> tuple[Domain, ...]:
    x = _expressions
    people = {"trait": x(lexicon.TRAITS), "garment": x(lexicon.GARMENTS), "company": x(lexicon.COMPANY)}
    people |= {"place": x(lexicon.PLACES), "time": x(lexicon.TIMES), "day": x(lexicon.DAYS)}
    animals = {"trait": x(lexicon.COATS), "place": x(lexicon.ANIMAL_PLACES), "time": x(lexicon.TIMES)}
    animals["day"] = x(lexicon.DAYS)
    things = {"trait": x(lexicon.MATERIALS), "origin": x(lexicon.ORIGINS), "spot": x(lexicon.THING_PLACES)}
    return (
        Domain(
            x(lexicon.PEOPLE, lexicon.PERSON_BROAD), x(lexicon.ACTIONS), people,
            ("company", "place", "time", "day"), ("garment", "company"), 1, True,
        ),
        Domain(
            x(lexicon.ANIMALS, lexicon.ANIMAL_BROAD), x(lexicon.ANIMAL_ACTIONS), animals,
            ("place", "time", "day"), (), 1, True,
        ),
        Domain(x(lexicon.THINGS, lexicon.THING_BROAD), x(lexicon.STATES), things, (), (), 2, False),
    )  # fmt: skip


def _fits(domain: Domain, scene: Scene) -> bool:
    """Whether the phrases read well together and none of them settles another."""
    place = scene.slots.get("place")
    if place is not None and scene.core.tag != "any" and scene.core.tag != place.tag:
        return False
    if "day" in scene.slots and "time" in scene.slots and scene.slots["time"].tag == "night":
        return False
    posts = sum(e.post for name, e in scene.slots.items() if name not in domain.adverbials)
    return posts <= (0 if scene.noun.heavy else domain.max_posts)


def _noun_phrase(domain: Domain, scene: Scene, plural: bool) -> str:
    subject = [(name, e) for name, e in scene.slots.items() if name not in domain.adverbials]
    words = [e.text for _, e in subject if not e.post]
    words.append(scene.noun.plural if plural else scene.noun.text)
    words += [e.text for _, e in subject if e.post]
    return " ".join(words)


def _indefinite(phrase: str) -> str:
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("ewe", "eu", "one", "uni"))
    return f"{'an' if vowel else 'a'} {phrase}"


def _predicate(domain: Domain, scene: Scene, fronted: bool) -> tuple[str, str]:
    """The predicate, and the adverbial that goes before the sentence (or nothing)."""
    names = [name for name in domain.adverbials if name in scene.slots]
    front = names.pop() if fronted and names and names[-1] != "company" else ""
    rest = " ".join([scene.core.text, *(scene.slots[name].text for name in names)])
    return rest, f"{scene.slots[front].text}, " if front else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _clause(domain: Domain, scene: Scene, verb: str, frame: str, definite: bool) -> str:
    """A sentence about one subject."""
    noun = _noun_phrase(domain, scene, False)
    subject = f"the {noun}" if definite else _indefinite(noun)
    rest, front = _predicate(domain, scene, frame == "fronted")
    if frame == "there":
        return _sentence(f"there {verb} {subject} {rest}")
    if frame == "true":
        return _sentence(f"it is true that {subject} {verb} {rest}")
    if frame == "false":
        return _sentence(f"it is not true that {subject} {verb} {rest}")
    return _sentence(f"{front}{subject} {verb} {rest}")


def _group_clause(domain: Domain, scene: Scene, form: str, group: str, verbs: tuple[str, str], fronted: bool) -> str:
    """A sentence about several subjects."""
    rest, front = _predicate(domain, scene, fronted)
    head = form.replace("{group}", group).replace("{be}", verbs[0]).replace("{is}", verbs[1])
    return _sentence(f"{front}{head} {rest}")


def _families(domains: Sequence[Domain]) -> tuple[Family, ...]:
    found: list[Family] = []
    modes = {"single": 0.55, "all": 0.16, "none": 0.09, "some": 0.06, "number": 0.14}
    for domain, share in zip(domains, (0.6, 0.2, 0.2), strict=True):
        for mode, mode_weight in modes.items():
            frames = ["plain", *(["there"] if mode == "single" and domain.existential else [])]
            counts = 15 if mode == "number" else 1 if mode == "single" else 7
            forms = 3 if mode in QUANTIFIERS else 1
            usable = [name for name in domain.slots if mode == "single" or name not in domain.single_only]
            sets = [names for size, _ in enumerate(_SIZES) for names in combinations(usable, size)]
            per_size = [sum(len(names) == size for names in sets) for size, _ in enumerate(_SIZES)]
            for names in sets:
                can_front = any(name in domain.adverbials and name != "company" for name in names)
                shapes = (*frames, "fronted") if can_front else tuple(frames)
                radices = (
                    len(domain.nouns), len(domain.core), counts, forms, 2, len(shapes),
                    *(len(domain.slots[name]) for name in names),
                )  # fmt: skip
                size = 1
                for radix in radices:
                    size *= radix
                weight = share * mode_weight * _SIZES[len(names)] / per_size[len(names)]
                found.append(Family(domain, mode, names, shapes, radices, weight, size))
    return tuple(found)


def _permute(number: int, bits: int, key: int) -> int:
    """A keyed bijection of the numbers below 2 ** bits: odd multipliers and right shifts can all be undone."""
    mask = (1 << bits) - 1
    for step in range(3):
        number = (number * ((key >> (7 * step)) * 2 + 0x9E3779B97F4A7C15) + (key >> step)) & mask
        number ^= number >> (bits // 2 + 1)
    return number


def _split_of(premise: str) -> Split:
    bucket = zlib.crc32(premise.lower().encode()) % 100
    return "train" if bucket < 70 else "dev" if bucket < 85 else "test"


def _spell(family: Family, number: int) -> Premise | None:
    """The premise with this number, or None where its phrases do not go together."""
    digits: list[int] = []
    for radix in family.radices:
        number, digit = divmod(number, radix)
        digits.append(digit)
    noun, core, count, form, past, frame, *rest = digits
    domain = family.domain
    slots = {name: domain.slots[name][digit] for name, digit in zip(family.names, rest, strict=True)}
    scene = Scene(domain.nouns[noun], domain.core[core], slots)
    if not _fits(domain, scene):
        return None
    verbs = ("were", "was") if past else ("are", "is")
    shape = family.frames[frame]
    if family.mode == "single":
        return Premise(domain, "single", scene, 1, verbs, _clause(domain, scene, verbs[1], shape, False))
    plural = _noun_phrase(domain, scene, True)
    count = count + 3 if family.mode == "number" or count else 0
    group = f"the {COUNTS[count]} {plural}" if count else f"the {plural}"
    wording = f"{COUNTS[count]} {plural} {{be}}" if family.mode == "number" else QUANTIFIERS[family.mode][form]
    text = _group_clause(domain, scene, wording, group, verbs, shape == "fronted")
    return Premise(domain, family.mode, scene, count, verbs, text)


def _pick(rng: random.Random, levels: tuple[tuple[Expr, ...], tuple[Expr, ...]]) -> Expr:
    return _one(rng, levels[rng.random() < _GENERAL_SHARE])


def _one(rng: random.Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def _maybe_wider(rng: random.Random, expr: Expr, share: float) -> Expr:
    return _one(rng, expr.wider) if expr.wider and rng.random() < share else expr


def _narrowed(rng: random.Random, premise: Premise, live: Sequence[str]) -> Scene:
    """All the premise's facts and one more, or one said in more detail: what "none" hands down."""
    scene, domain = premise.scene, premise.domain
    core, slots = scene.core, dict(scene.slots)
    absent = [name for name in live if name not in slots]
    if absent and (not core.narrower or rng.random() < 0.6):
        name = _one(rng, absent)
        slots[name] = _pick(rng, _LEVELS[id(domain.slots[name])])
    elif core.narrower:
        core = _one(rng, core.narrower)
    return Scene(scene.noun, core, slots)


def _loosened(rng: random.Random, premise: Premise, live: Sequence[str]) -> Scene | None:
    """The premise's scene less one fact: under "none" the fact might be all that was missing."""
    scene = premise.scene
    present = [name for name in live if name in scene.slots]
    if not present:
        return None
    dropped = _one(rng, present)
    return Scene(scene.noun, scene.core, {name: e for name, e in scene.slots.items() if name != dropped})


def _focus(rng: random.Random, premise: Premise, relation: Relation, live: Sequence[str]) -> tuple[str, Expr] | None:
    """The slot that carries the label ("" for the predicate) and its new phrase."""
    scene, domain = premise.scene, premise.domain
    core = scene.core
    if relation != "add":
        present = [name for name in live if name in scene.slots]
        name = "" if not present or rng.random() < 0.4 else _one(rng, present)
        old = scene.slots[name] if name else core
        return name, _maybe_wider(rng, old, _GENERAL_SHARE) if relation == "widen" else _pick(rng, old.other)
    options = [name for name in live if name not in scene.slots]
    if core.narrower or core.outside[0]:
        options += [""] * (2 if options else 1)
    if not options:
        return None
    name = _one(rng, options)
    if name:
        return name, _pick(rng, _LEVELS[id(domain.slots[name])])
    return name, _one(rng, core.narrower) if core.narrower else _pick(rng, core.outside)


def _changed(rng: random.Random, premise: Premise, relation: Relation, live: Sequence[str], noun: bool) -> Scene | None:
    """A scene in this relation to the premise's; only the slots in `live` may differ, the noun may widen if told.

    Whatever the relation, the slots that do not carry the label are kept, widened or dropped alike.
    """
    scene, domain = premise.scene, premise.domain
    found: Scene | None
    if relation == "narrow":
        found = _narrowed(rng, premise, live)
    elif relation == "loosen":
        found = _loosened(rng, premise, live)
    else:
        focus = _focus(rng, premise, relation, live)
        if focus is None:
            return None
        name, new = focus
        kept = [other for other in live if other in scene.slots and other != name]
        room = (rng.random() < 0.4) + (rng.random() < 0.75) - bool(name)
        while len(kept) > max(room, 0):
            kept.pop(int(rng.random() * len(kept)))
        slots = {other: e for other, e in scene.slots.items() if other not in live}
        slots |= {other: _maybe_wider(rng, scene.slots[other], _WIDEN_SHARE) for other in kept}
        if name:
            slots[name] = new
        core = _maybe_wider(rng, scene.core, _WIDEN_SHARE) if name else new
        found = Scene(_maybe_wider(rng, scene.noun, _WIDEN_SHARE) if noun else scene.noun, core, slots)
    if found is None or not _fits(domain, found):
        return None
    found.slots = {name: found.slots[name] for name in domain.slots if name in found.slots}
    return found


# (premise quantifier, hypothesis quantifier) -> for each label, the relations of the two scenes that give it.
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


def _single(rng: random.Random, premise: Premise, label: str) -> str | None:
    domain = premise.domain
    negated = rng.random() < _NEGATED_SHARE
    relation = _one(rng, _ALL["none" if negated else "all"][label])
    # "The tall nurse is not ..." takes the nurse's height for granted, so negation leaves the subject as it is.
    live = domain.adverbials if negated else tuple(domain.slots)
    scene = _changed(rng, premise, relation, live, True)
    if scene is None:
        return None
    verb = premise.verbs[1]
    if negated:
        frame = "false" if rng.random() < 0.4 else "plain"
        return _clause(domain, scene, verb if frame == "false" else f"{verb} not", frame, True)
    frames = ("plain", "plain", "fronted", "true", "there") if domain.existential else ("plain", "plain", "true")
    frame = _one(rng, frames)
    return _clause(domain, scene, verb, frame, frame != "there" and rng.random() < 0.65)


def _quantified(rng: random.Random, premise: Premise, label: str) -> str | None:
    table = _TABLE[premise.mode]
    quantifier = _one(rng, [q for q in table if label in table[q]])
    live = [name for name in premise.domain.adverbials if name not in premise.domain.single_only]
    scene = _changed(rng, premise, _one(rng, table[quantifier][label]), live, False)
    if scene is None:
        return None
    plural = _noun_phrase(premise.domain, scene, True)
    group = f"the {COUNTS[premise.count]} {plural}" if premise.count and rng.random() < 0.5 else f"the {plural}"
    form = _one(rng, QUANTIFIERS[quantifier])
    return _group_clause(premise.domain, scene, form, group, premise.verbs, rng.random() < 0.2)


def _numbered(rng: random.Random, premise: Premise, label: str) -> str | None:
    count = premise.count
    raised = label == _C and rng.random() < 0.6
    kind = _one(rng, ("", "at least ", "more than "))
    if raised:
        # A larger number excludes the premise only while the two sentences say the same of the same things.
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
    form = f"{kind}{COUNTS[number]} {_noun_phrase(premise.domain, scene, True)} {{be}}"
    return _group_clause(premise.domain, scene, form, "", premise.verbs, rng.random() < 0.2)


def _hypothesis(rng: random.Random, premise: Premise, label: str) -> str | None:
    write: Callable[[random.Random, Premise, str], str | None]
    write = _single if premise.mode == "single" else _numbered if premise.mode == "number" else _quantified
    for _ in range(12):
        text = write(rng, premise, label)
        if text is not None and text != premise.text and text.count(" ") <= _MOST_SPACES:
            return text
    return None


_DOMAINS = _domains()
_LEVELS = {id(exprs): _by_level(exprs) for domain in _DOMAINS for exprs in domain.slots.values()}


def _premises(split: Split, rng: random.Random, seed: int) -> Iterator[Premise]:
    families = list(_families(_DOMAINS))
    key = zlib.crc32(f"premises {seed}".encode()) * 0x10001
    totals = list(accumulate(f.weight for f in families))
    while families:
        family = families[bisect(totals, rng.random() * totals[-1])]
        if family.used >> (family.size - 1).bit_length():
            families.remove(family)
            totals = list(accumulate(f.weight for f in families))
            continue
        number = _permute(family.used, (family.size - 1).bit_length(), key)
        family.used += 1
        premise = _spell(family, number) if number < family.size else None
        if premise is not None and premise.text.count(" ") <= _MOST_SPACES and _split_of(premise.text) == split:
            yield premise


def generate(split: Split, pairs: int, seed: int) -> Iterator[Row]:
    """Yields exactly `pairs` rows (premise, hypothesis, label), the rows of one premise in one block.

    The rows depend on `split` and `seed` alone and a smaller request is a prefix of a larger one. Premises do not
    repeat, and no premise is in two splits, whatever the seeds.
    """
    rng = random.Random(zlib.crc32(f"rows {split} {seed}".encode()))
    left = pairs
    for premise in _premises(split, rng, seed):
        wanted = [*LABELS]
        chance = rng.random()
        if chance < 0.15:
            wanted.append(_E)
        elif chance < 0.3:
            wanted.append(_C)
        elif chance < 0.4:
            wanted.append(_N)
        rng.shuffle(wanted)
        seen: set[str] = set()
        for label in wanted:
            if left == 0:
                return
            hypothesis = _hypothesis(rng, premise, label)
            if hypothesis is None or hypothesis in seen:
                continue
            seen.add(hypothesis)
            left -= 1
            yield premise.text, hypothesis, label
    if left:
        raise ValueError(f"the {split} split has no more premises: {left} of {pairs} pairs are missing")
