"""Scenes: who does what, how, where and when, as phrases of the lexicon with known relations; and their wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.data import lexicon
from pipeline.data.lexicon import Concept, Group

_POSTMODIFIER = (" who ", " that ", " of ", " with ", " for ", " to ")
_POST_STARTS = ("in ", "of ", "with ", "made ", "that ", "from ", "on ", "by ", "next ", "under ")


@dataclass(eq=False, slots=True)
class Expr:
    """A phrase and the phrases with a known relation to it."""

    text: str
    plural: str
    tag: str
    general: bool
    heavy: bool
    post: bool
    wider: tuple[Expr, ...] = ()
    narrower: tuple[Expr, ...] = ()
    other: tuple[tuple[Expr, ...], tuple[Expr, ...]] = ((), ())  # (leaves, general phrases)
    outside: tuple[tuple[Expr, ...], tuple[Expr, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Domain:
    """The phrases for one kind of subject. Slots are in sentence order, adverbials last."""

    nouns: tuple[Expr, ...]
    core: tuple[Expr, ...]
    slots: dict[str, tuple[Expr, ...]]
    adverbials: tuple[str, ...]
    single_only: tuple[str, ...]  # slots that do not read well with several subjects
    max_posts: int
    existential: bool


@dataclass(slots=True)
class Scene:
    """The content of a sentence as expressions, before it becomes text."""

    noun: Expr
    core: Expr
    slots: dict[str, Expr]


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


def by_level(exprs: Sequence[Expr]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The leaves and the general phrases among `exprs`."""
    return tuple(e for e in exprs if not e.general), tuple(e for e in exprs if e.general)


def _expressions(groups: Sequence[Group], broad: Sequence[str] = ()) -> tuple[Expr, ...]:
    top = tuple(_expr(text, Concept((), ()), True) for text in broad)
    spelled = [
        [([_expr(t, c, False) for t in c.leaves], [_expr(t, c, True) for t in c.general]) for c in group] for group in groups
    ]
    flat = [[e for leaves, general in group for e in (*leaves, *general)] for group in spelled]
    for g, group in enumerate(spelled):
        outside = by_level([e for h, exprs in enumerate(flat) if h != g for e in exprs])
        for leaves, general in group:
            own_ids = {id(e) for e in (*leaves, *general)}
            other = by_level([e for e in flat[g] if id(e) not in own_ids])
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


def fits(domain: Domain, scene: Scene) -> bool:
    """True if the phrases read well together and none determines another."""
    place = scene.slots.get("place")
    if place is not None and scene.core.tag != "any" and scene.core.tag != place.tag:
        return False
    if "day" in scene.slots and "time" in scene.slots and scene.slots["time"].tag == "night":
        return False
    posts = sum(e.post for name, e in scene.slots.items() if name not in domain.adverbials)
    return posts <= (0 if scene.noun.heavy else domain.max_posts)


def implies(a: Scene, b: Scene) -> bool:
    """True if all that scene b says follows from scene a. If each implies the other, they mean the same."""

    def follows(narrow: Expr, wide: Expr) -> bool:
        return narrow is wide or wide in narrow.wider

    return (
        follows(a.noun, b.noun)
        and follows(a.core, b.core)
        and all(name in a.slots and follows(a.slots[name], expr) for name, expr in b.slots.items())
    )


def noun_phrase(domain: Domain, scene: Scene, plural: bool) -> str:
    """The noun with its modifiers (traits, clothes), without an article."""
    subject = [(name, e) for name, e in scene.slots.items() if name not in domain.adverbials]
    words = [e.text for _, e in subject if not e.post]
    words.append(scene.noun.plural if plural else scene.noun.text)
    words += [e.text for _, e in subject if e.post]
    return " ".join(words)


def _predicate(domain: Domain, scene: Scene, fronted: bool) -> tuple[str, str]:
    """The predicate, and the adverbial to put before the sentence ("" for none)."""
    names = [name for name in domain.adverbials if name in scene.slots]
    front = names.pop() if fronted and names and names[-1] != "company" else ""
    rest = " ".join([scene.core.text, *(scene.slots[name].text for name in names)])
    return rest, f"{scene.slots[front].text}, " if front else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def clause(domain: Domain, scene: Scene, verb: str, frame: str, definite: bool) -> str:
    """A sentence about one subject."""
    noun = noun_phrase(domain, scene, False)
    vowel = noun[0] in "aeiou" and not noun.startswith(("ewe", "eu", "one", "uni"))
    subject = f"{'the' if definite else 'an' if vowel else 'a'} {noun}"
    rest, front = _predicate(domain, scene, frame == "fronted")
    if frame == "there":
        return _sentence(f"there {verb} {subject} {rest}")
    start = {"true": "it is true that ", "false": "it is not true that "}.get(frame, front)
    return _sentence(f"{start}{subject} {verb} {rest}")


def group_clause(domain: Domain, scene: Scene, form: str, group: str, verbs: tuple[str, str], fronted: bool) -> str:
    """A sentence about several subjects."""
    rest, front = _predicate(domain, scene, fronted)
    head = form.replace("{group}", group).replace("{be}", verbs[0]).replace("{is}", verbs[1])
    return _sentence(f"{front}{head} {rest}")


DOMAINS = _domains()
LEVELS = {id(exprs): by_level(exprs) for domain in DOMAINS for exprs in domain.slots.values()}
