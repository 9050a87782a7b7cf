"""Labelled pairs of everyday sentences (`pipeline.data.generated.everyday`), for the generated source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from pipeline.data.generated import Row
from pipeline.data.generated.everyday import everyday_sentences, two_events
from pipeline.data.generated.premises import Split, split_of
from pipeline.families.pairs.minimal_pairs import changed, neighbours_in
from pipeline.families.pairs.word_changes import NEITHER, changes

# Sentences that say which words follow each other.
_SAMPLE = 20_000
# Shares. Of premises whose neutral hypothesis is another event (the others: one that says more than the premise), of changed
# sentences among the other premises, and of premises that entail nothing whose contradiction is left out.
_EVENTS, _CHANGED, _LEFT_OUT = 0.25, 0.7, 0.6


def everyday_pairs(split: Split, count: int, seed: int) -> Iterator[Row]:
    """Exactly `count` rows, where one premise has at most one pair of each label; its rows are consecutive.

    A row is a premise, a hypothesis, the label of the pair and that of the pair turned round.
    """
    rng = random.Random(f"everyday pairs {split} {seed}")
    neighbours = neighbours_in(islice(everyday_sentences(split, seed), _SAMPLE))
    seen: set[str] = set()
    for text in everyday_sentences(split, seed):
        premise, by_label = text, dict[str, Row]()
        if rng.random() < _EVENTS:
            premise, other = two_events(rng)
            if not _related(premise, other):
                by_label["neutral"] = (premise, other, *NEITHER)
        elif rng.random() < _CHANGED:
            # The premise is a changed sentence: the words that a change brings must be as common in premises as in hypotheses.
            entailed = rng.random() < 0.5
            of_text = [pair for pair in changed(text, neighbours, rng) if pair.premise == text]
            if some := [pair for pair in of_text if (pair.label == "entailment") == entailed]:
                change = rng.choice(some)
                premise = change.hypothesis
                by_label[change.reverse_label] = (premise, text, change.reverse_label, change.label)
        if premise in seen or split_of(premise) != split:
            continue
        seen.add(premise)
        found = [pair for pair in changed(premise, neighbours, rng, twice=True) if pair.premise == premise]
        # Of each label the last one counts, which has two changes if there is one, and what is there already.
        by_label = {**{pair.label: pair[1:] for pair in found}, **by_label}
        if "entailment" not in by_label and rng.random() < _LEFT_OUT:
            by_label.pop("contradiction", None)
        rows = list(by_label.values())[:count]
        yield from rows
        count -= len(rows)
        if not count:
            return


def _related(premise: str, other: str) -> bool:
    """Whether a change may turn a word of one event into a word of the other: then they may exclude or entail each other."""
    one, two = (set(text.lower().rstrip(".").split()) for text in (premise, other))
    return any(change.new in two - one for word in one for change in changes().get(word, ()))
