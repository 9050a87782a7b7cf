"""Generated rows for sentence operators. The slots of a scene make the answers exact.

A scene has a subject, an action and optional facts: a trait, a place, a time. Two sentences about it each say some of the facts.
Their fusion says all of them. The difference of the fusion and one sentence is the other one. Compression leaves no fact, only
subject and action. Reconstruction gives a sentence in other words its plain form.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.data.generated.premises import Premise, Split, premises_of, split_of
from pipeline.data.generated.scenes import Scene, clause
from pipeline.data.schema import OPERATIONS, Operation


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation, its inputs and its result.

    Attributes:
        b: the second input of an operation in `pipeline.data.schema.TWO_INPUTS`; None for the others.
    """

    operation: Operation
    a: str
    b: str | None
    target: str


def generate_operations(split: Split, rows: int, seed: int) -> Iterator[OperationRow]:
    """Generate exactly `rows` rows, the operations in turn, each of another scene.

    They depend only on `split` and `seed`; a smaller request is a prefix of a larger one. No scene is in two splits, whatever the
    seeds. Sentences that say only a part of a scene may be.

    Raises:
        ValueError: the grammar has too few scenes.
    """
    rng = random.Random(zlib.crc32(f"operations {split} {seed}".encode()))
    seen: set[str] = set()
    drawn = 0
    for premise in premises_of(split, rng, seed):
        if drawn == rows:
            return
        if premise.mode != "single" or len(premise.scene.slots) < 2:
            continue
        # A scene can be worded in two tenses and several frames; one of these wordings decides for all of them.
        scene = clause(premise.domain, premise.scene, "is", "plain", False)
        if split_of(scene) != split or scene in seen:
            continue
        seen.add(scene)
        yield _row(rng, premise, OPERATIONS[drawn % len(OPERATIONS)])
        drawn += 1
    if drawn < rows:
        raise ValueError(f"the {split} split has no more scenes with two facts: {rows - drawn} of {rows} rows are missing")


def _row(rng: random.Random, premise: Premise, operation: Operation) -> OperationRow:
    names = list(premise.scene.slots)
    whole = _plain(premise, names)
    if operation == "compression":
        return OperationRow(operation, whole, None, _plain(premise, []))
    if operation == "reconstruction":
        return OperationRow(operation, _in_other_words(rng, premise), None, whole)
    rng.shuffle(names)
    cut = 1 + int(rng.random() * (len(names) - 1))
    first, second = _plain(premise, names[:cut]), _plain(premise, names[cut:])
    if operation == "fusion":
        return OperationRow(operation, first, second, whole)
    return OperationRow(operation, whole, first, second)


def _plain(premise: Premise, names: list[str]) -> str:
    """The sentence with the facts of these slots."""
    scene = premise.scene
    slots = {name: expr for name, expr in scene.slots.items() if name in names}
    return clause(premise.domain, Scene(scene.noun, scene.core, slots), premise.verbs[1], "plain", False)


def _in_other_words(rng: random.Random, premise: Premise) -> str:
    """The same facts in another word order, or about a subject that is known already."""
    can_front = any(name in premise.domain.adverbials and name != "company" for name in premise.scene.slots)
    frames = ["fronted"] * can_front + ["there"] * premise.domain.existential + ["true", "plain"]
    frame = frames[int(rng.random() * len(frames))]
    definite = frame == "plain" or (frame != "there" and rng.random() < 0.5)
    return clause(premise.domain, premise.scene, premise.verbs[1], frame, definite)
