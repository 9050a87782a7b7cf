"""Generated NLI rows: a small grammar over `pipeline.data.lexicon`. The construction of a row determines its label.

A premise is a scene (noun, predicate, optional slots) under a quantifier. A hypothesis first draws its quantifier, independent of
its label. Then it takes a relation between the two scenes that gives the wanted label. "all" and "none" swap the roles of
generalising and altering, so negation does not reveal the label. Altered and added phrases are drawn in the same way as
generalised ones, so the hypothesis alone reveals little, too.

Premises never repeat: each family of premises numbers its sentences in mixed radix, different numbers give different sentences,
and a seeded bijection determines the order of the numbers. A hash of the sentence determines its split.
"""

import random
import zlib
from collections.abc import Iterator

from pipeline.data.generated.hypotheses import LABELS, write_hypothesis
from pipeline.data.generated.premises import Split, premises_of

Row = tuple[str, str, str, str]
_ENTAILMENT, _NEUTRAL, _CONTRADICTION = LABELS


def generate(split: Split, pairs: int, seed: int) -> Iterator[Row]:
    """Generate exactly `pairs` rows; the rows of one premise are consecutive.

    A row is a premise, a hypothesis, the label of the pair and that of the pair turned round.

    The rows depend only on `split` and `seed`; a smaller request is a prefix of a larger one. Premises do not repeat, and no
    premise is in two splits, whatever the seeds.

    Raises:
        ValueError: the split has too few premises.
    """
    rng = random.Random(zlib.crc32(f"rows {split} {seed}".encode()))
    remaining = pairs
    for premise in premises_of(split, rng, seed):
        chance = rng.random()
        more = _ENTAILMENT if chance < 0.15 else _CONTRADICTION if chance < 0.3 else _NEUTRAL if chance < 0.4 else None
        labels = [*LABELS, *([more] if more else [])]
        rng.shuffle(labels)
        texts: set[str] = set()
        for label in labels:
            if remaining == 0:
                return
            written = write_hypothesis(rng, premise, label)
            if written is None or written[0] in texts:
                continue
            text, entails_premise = written
            texts.add(text)
            remaining -= 1
            # A contradiction holds both ways.
            reverse = _ENTAILMENT if entails_premise else _CONTRADICTION if label == _CONTRADICTION else _NEUTRAL
            yield premise.text, text, label, reverse
    if remaining:
        raise ValueError(f"the {split} split has no more premises: {remaining} of {pairs} pairs are missing")
