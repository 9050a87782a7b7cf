"""Premises of the generated source: numbered, visited in a seeded order, each always in the same split."""

from __future__ import annotations

import random
import zlib
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, product
from math import prod
from typing import Literal

from pipeline.data.generated.scenes import DOMAINS, Domain, Scene, clause, fits, group_clause, noun_phrase
from pipeline.data.lexicon import COUNTS, QUANTIFIERS

Split = Literal["train", "dev", "test"]

MOST_SPACES = 25  # so a sentence has at most 26 words
_SIZES = (0.08, 0.38, 0.4, 0.14)  # share of premises by their number of optional slots


@dataclass(slots=True)
class Premise:
    """A premise as text, and the data for its hypotheses."""

    domain: Domain
    mode: str
    scene: Scene
    count: int
    verbs: tuple[str, str]  # plural, singular
    text: str


@dataclass(slots=True)
class Family:
    """Premises of one shape; `radices` are the numbers of options of each choice that makes up a sentence."""

    domain: Domain
    mode: str
    names: tuple[str, ...]
    frames: tuple[str, ...]
    radices: tuple[int, ...]
    weight: float
    size: int
    used: int = 0


def _families(domains: Sequence[Domain]) -> Iterator[Family]:
    modes = {"single": 0.55, "all": 0.16, "none": 0.09, "some": 0.06, "number": 0.14}
    for (domain, share), (mode, mode_weight) in product(zip(domains, (0.6, 0.2, 0.2), strict=True), modes.items()):
        frames = ["plain", *(["there"] if mode == "single" and domain.existential else [])]
        counts = 15 if mode == "number" else 1 if mode == "single" else 7
        forms = 3 if mode in QUANTIFIERS else 1
        usable = [name for name in domain.slots if mode == "single" or name not in domain.single_only]
        for size, share_of_size in enumerate(_SIZES):
            sets = [*combinations(usable, size)]
            for names in sets:
                can_front = any(name in domain.adverbials and name != "company" for name in names)
                shapes = (*frames, "fronted") if can_front else tuple(frames)
                choices = [len(domain.slots[name]) for name in names]
                radices = (len(domain.nouns), len(domain.core), counts, forms, 2, len(shapes), *choices)
                weight = share * mode_weight * share_of_size / len(sets)
                yield Family(domain, mode, names, shapes, radices, weight, prod(radices))


def _permute(number: int, bits: int, key: int) -> int:
    """A keyed bijection of the numbers below 2 ** bits: odd multipliers, sums and xor with right shifts are all invertible."""
    mask = (1 << bits) - 1
    for step in range(3):
        number = (number * ((key >> (7 * step)) * 2 + 0x9E3779B97F4A7C15) + (key >> step)) & mask
        number ^= number >> (bits // 2 + 1)
    return number


def split_of(premise: str) -> Split:
    """The split of a sentence that begins something: a premise, or a document."""
    bucket = zlib.crc32(premise.lower().encode()) % 100
    return "train" if bucket < 70 else "dev" if bucket < 85 else "test"


def _spell(family: Family, number: int) -> Premise | None:
    """The premise with this number; None if its phrases do not fit together."""
    digits: list[int] = []
    for radix in family.radices:
        number, digit = divmod(number, radix)
        digits.append(digit)
    noun, core, count, form, past, frame, *rest = digits
    domain = family.domain
    slots = {name: domain.slots[name][digit] for name, digit in zip(family.names, rest, strict=True)}
    scene = Scene(domain.nouns[noun], domain.core[core], slots)
    if not fits(domain, scene):
        return None
    verbs = ("were", "was") if past else ("are", "is")
    shape = family.frames[frame]
    if family.mode == "single":
        return Premise(domain, "single", scene, 1, verbs, clause(domain, scene, verbs[1], shape, False))
    plural = noun_phrase(domain, scene, True)
    count = count + 3 if family.mode == "number" or count else 0
    group = f"the {COUNTS[count]} {plural}" if count else f"the {plural}"
    wording = f"{COUNTS[count]} {plural} {{be}}" if family.mode == "number" else QUANTIFIERS[family.mode][form]
    text = group_clause(domain, scene, wording, group, verbs, shape == "fronted")
    return Premise(domain, family.mode, scene, count, verbs, text)


def premises_of(split: Split, rng: random.Random, seed: int) -> Iterator[Premise]:
    """The premises of a split without repeats, until the grammar has no more.

    Args:
        split: the split.
        rng: draws the family of each premise.
        seed: determines the order of premises within a family.
    """
    families = list(_families(DOMAINS))
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
        if premise is not None and premise.text.count(" ") <= MOST_SPACES and split_of(premise.text) == split:
            yield premise
