"""Minimal pairs: a sentence and the same sentence with one word or phrase changed, or two, so that the label follows.

In NLI data the hypothesis differs from the premise in many words, and a model can do well without the one that decides. Here it
is the only one that can decide. The sentences are a project's own training sentences, and everyday ones; the words come from
`pipeline.data.lexicon`: everyday.json is written by hand, wordnet.json is derived from WordNet.

A change is made only where it is certain: not under "no", "if", "every" and the like, where wider and narrower change places. A
new word must have stood next to the same neighbours in the training sentences, so that the sentence reads as if somebody had
written it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pipeline.config.types import LabelName
from pipeline.data.lexicon import COUNTS
from pipeline.families.pairs.word_changes import (
    BOTH_WAYS,
    EVERYDAY,
    EXCLUDED,
    KINDS,
    NEITHER,
    ONE_WAY,
    TURNED,
    Change,
    Kind,
    changes,
)

MOST_SENTENCES = 300_000
"""Training sentences that stage prepare makes minimal pairs of; of more, a sample. It bounds memory and time."""
# One change of words, such as "man" to "woman", makes up at most this share of a kind.
_SHARE_OF_A_CHANGE = 0.02
_WORDS = range(4, 26)
Words = tuple[str, ...]
Neighbours = frozenset[tuple[str, str]]
"""Pairs of words that follow each other."""
# The kinds whose changes come from a lexicon. Those of the others are always the same few.
_LEXICAL = frozenset(("antonym", "co-hyponym", "hypernym", "synonym"))

# Zero to twenty: what is drawn depends on how many there are.
_NUMBERS = COUNTS[:21]
_CLASSES: dict[str, frozenset[str]] = {name: frozenset(words) for name, words in EVERYDAY["word_classes"].items()}
_DOWNWARD = _CLASSES["downward"]
"""After these, a wider word is not entailed, or nobody can say without a parser."""
_AFTER_NOUN = _CLASSES["after_noun"]
"""What may follow a noun that is the head of its phrase."""
_ACTS: dict[str, str] = EVERYDAY["word_classes"]["acts"]
"""From A who does this to B it does not follow that B does it to A. As "doing" → "done"."""
_NEEDS_PLACE = _CLASSES["needs_place"]
"""Words whose place belongs to them: without it the sentence is not one."""
_DETERMINERS, _ADJECTIVES, _PLACE = _CLASSES["determiners"], _CLASSES["adjectives"], _CLASSES["places"]
_PLURAL_PEOPLE, _CLAUSES, _TIMES = _CLASSES["plural_people"], _CLASSES["clauses"], _CLASSES["times"]
_WHO_ACTS = _CLASSES["who_acts"].union(EVERYDAY["wider"]["person"], EVERYDAY["wider"]["animal"])
_PLURAL_DETERMINERS = frozenset(("several", "many", *_NUMBERS[2:]))
_BE = frozenset(("is", "are", "was", "were"))
_UNITS = re.compile("(year|hour|minute|month|day|week|percent|second)")


class MinimalPair(NamedTuple):
    """A premise, a hypothesis that differs from it in one or two places, and the labels of both directions."""

    kind: Kind
    premise: str
    hypothesis: str
    label: LabelName
    reverse_label: LabelName


def minimal_pairs(
    sentences: Sequence[str],
    most: int,
    seed: int,
    *,
    further: Sequence[str] = (),
    like: Iterable[str] = (),
    without: Container[Words] = (),
    twice: bool = False,
) -> list[MinimalPair]:
    """At most `most` different minimal pairs, as many of each kind as there are and fit, in an order drawn with `seed`.

    Args:
        sentences: different sentences; their order counts.
        further: sentences for the kinds of which the others give too few pairs.
        like: further sentences that say which words follow each other.
        without: changes of words that are not made (`words_changed`).
        twice: whether a hypothesis that is entailed may be changed once more. The kind is that of the second change.
    """
    rng = random.Random(f"minimal pairs {seed}")
    neighbours = neighbours_in([*sentences, *further, *like])
    by_kind: dict[Kind, list[MinimalPair]] = {kind: [] for kind in KINDS}
    for texts in (sentences, further):
        pairs = [pair for text in texts for pair in changed(text, neighbours, rng, twice)]
        rng.shuffle(pairs)
        for pair in pairs:
            if pair.kind not in _LEXICAL or words_changed(*pair[1:3]) not in without:
                by_kind[pair.kind].append(pair)
    chosen: list[MinimalPair] = []
    # The rarest kind first, so that the others share what it leaves.
    for left, kind in zip(range(len(KINDS), 0, -1), sorted(KINDS, key=lambda kind: len(by_kind[kind])), strict=True):
        chosen += _varied(by_kind[kind], (most - len(chosen)) // left)
    rng.shuffle(chosen)
    return chosen


def changed(text: str, neighbours: Neighbours, rng: random.Random, twice: bool = False) -> list[MinimalPair]:
    """Every minimal pair of a sentence; none of a sentence that is not plain.

    Args:
        neighbours: of the sentences that say which words follow each other.
        twice: as for `minimal_pairs`; four such pairs at most.
    """
    sentence = _Sentence.of(text)
    pairs = [] if sentence is None else list(sentence.changed(text, neighbours, rng))
    if sentence is not None and sentence.low[0] in ("some", "many", "several", "few"):
        # What some do, others may not do.
        pairs = [pair for pair in pairs if pair.label != "contradiction" or pair.kind == "quantifier"]
    entailed = [pair for pair in pairs if pair.label == "entailment"]
    if not twice or not entailed:
        return pairs
    first = rng.choice(entailed)
    # What follows from what is entailed is entailed, and what it excludes is excluded. The other labels do not carry over.
    further = [
        pair
        for pair in changed(first.hypothesis, neighbours, rng)
        if pair.premise == first.hypothesis and pair.label != "neutral" and pair.hypothesis != first.premise
    ]
    for second in rng.sample(further, min(4, len(further))):
        both_ways = first.reverse_label == second.reverse_label == "entailment"
        back: LabelName = second.reverse_label if second.label == "contradiction" or both_ways else "neutral"
        pairs.append(MinimalPair(second.kind, first.premise, second.hypothesis, second.label, back))
    return pairs


def exchanged(premise: str, hypothesis: str) -> set[Words]:
    """The change of a few words as a whole, and each of the old words with each of the new ones; none of more words."""
    whole = words_changed(premise, hypothesis)
    old, new = whole[: whole.index("→")], whole[whole.index("→") + 1 :]
    return {whole, *((one, "→", other) for one in old for other in new)} if len(whole) < 8 else set()


def _varied(pairs: list[MinimalPair], most: int) -> list[MinimalPair]:
    """At most so many of the pairs, the first ones, and few of one change of words."""
    seen: Counter[Words] = Counter()
    chosen: dict[tuple[str, str], MinimalPair] = {}
    for pair in pairs:
        if len(chosen) >= most:
            break
        change = words_changed(pair.premise, pair.hypothesis)
        # Of the other kinds, negations are all alike, and phrases and roles differ anyway.
        if pair.kind not in _LEXICAL or seen[change] < max(2, _SHARE_OF_A_CHANGE * most):
            seen[change] += 1
            chosen.setdefault((pair.premise, pair.hypothesis), pair)
    return list(chosen.values())


def words_changed(premise: str, hypothesis: str) -> Words:
    """The words that only the premise has, an arrow, and the words that only the hypothesis has."""
    old, new = (Counter(re.findall(r"[\w'-]+", text.lower())) for text in (premise, hypothesis))
    return *sorted(old - new), "→", *sorted(new - old)


def neighbours_in(sentences: Iterable[str]) -> Neighbours:
    """Pairs of words that follow each other; ("", w) for a sentence that begins with w."""
    found: set[tuple[str, str]] = set()
    for text in sentences:
        found.update(pairwise(["", *re.findall(r"[a-z'-]+|[.,;:!?]", text.lower())]))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence as words; only those whose words joined by spaces give the text."""

    words: list[str]
    """As written, but the first in lower case if it has a capital only because it is the first."""
    low: list[str]
    capital: bool
    end: str

    @staticmethod
    def of(text: str) -> _Sentence | None:
        """None for a sentence that is not plain: with digits, quotes or brackets, or of an unusual length."""
        body, end = (text[:-1], text[-1]) if text.endswith((".", "!")) else (text, "")
        words = re.findall(r"[A-Za-z'-]+|,", body)
        if len(words) not in _WORDS or " ".join(words).replace(" ,", ",") != body or "n't" in body or words[0] == ",":
            return None
        low = [word.lower() for word in words]
        return _Sentence([low[0], *words[1:]], low, words[0][0].isupper(), end)

    @property
    def downward(self) -> bool:
        return not _DOWNWARD.isdisjoint(self.low)

    def with_(self, start: int, stop: int, *new: str) -> str:
        """The text with other words from `start` to `stop`, and the article before them adapted."""
        words = [*self.words[:start], *new, *self.words[stop:]]
        if 0 < start < len(words):
            words[start - 1] = _article(words[start - 1], words[start])
        text = " ".join(words).replace(" ,", ",")
        return (text[:1].upper() + text[1:] if self.capital else text) + self.end

    def changed(self, text: str, neighbours: Neighbours, rng: random.Random) -> Iterator[MinimalPair]:
        """Every change of this sentence, which is `text`."""
        for position in range(len(self.words)):
            for change in changes().get(self.low[position], ()):
                if self._fits(position, change, neighbours):
                    new = change.new.split()
                    yield MinimalPair(change.kind, text, self.with_(position, position + 1, *new), *change.labels)
                    alone = self.low[position + 1 : position + 2] not in (["and"], ["or"], [","])
                    if change.kind == "hypernym" and change.noun and position == 1 and self.low[0] in ("a", "an") and alone:
                        # If nothing is an animal, nothing is a dog.
                        yield MinimalPair(change.kind, self.with_(0, 2, "no", *new), self.with_(0, 1, "no"), *ONE_WAY)
        for kind, find in _FINDERS.items():
            for new_text, labels in find(self, rng):
                yield MinimalPair(kind, text, new_text, *labels)

    def _fits(self, at: int, change: Change, neighbours: Neighbours) -> bool:
        before, after = self.low[at - 1] if at else "", self.low[at + 1] if at + 1 < len(self.low) else ""
        new = change.new.split()
        # "Than" without "more" says nothing of what is before it.
        than = "than" if "more" not in self.low and "than" in self.low[at:] else ""
        downward = any(word in _DOWNWARD for word in self.low if word != than)
        if set(new) & set(self.low) - {"a"} or (downward and change.labels != BOTH_WAYS):
            return False
        if at and self.words[at][0].isupper():
            # A name.
            return False
        ends_here = after in ("", ",") or after in _AFTER_NOUN or after.endswith("ing")
        if change.noun:
            singular = not self.low[at].endswith("s") and self.low[at] not in _PLURAL_PEOPLE
            nearby = set(self.low[max(0, at - 3) : at])
            if not ends_here or (singular and (not nearby & _DETERMINERS or nearby & _PLURAL_DETERMINERS)):
                return False
        elif change.kind == "hypernym" and not (after in ("", ",") or after in _PLACE | {"down", "up", "around", "to", "away"}):
            return False
        if len(new) > 1 and new[0] == "a" and (before in _DETERMINERS or not ends_here):
            return False
        seen_before = before == "," or (_article(before, new[0]), new[0]) in neighbours
        return seen_before and (after in ("", ",") or (new[-1], after) in neighbours)


def _article(word: str, following: str) -> str:
    """ "a" or "an" as the following word wants it; another word as it is."""
    if word.lower() not in ("a", "an"):
        return word
    vowel = following[:1].lower() in "aeiou" and not following.lower().startswith(("uni", "one", "use", "eur"))
    return word[0] + ("n" if vowel or following in ("hour", "heir") else "")


Found = Iterator[tuple[str, tuple[LabelName, LabelName]]]


def _counted(sentence: _Sentence) -> Iterator[tuple[int, int]]:
    """Positions of numbers that count the next word, with the number."""
    low = sentence.low
    for at, (word, after) in enumerate(pairwise(low)):
        before = low[at - 1] if at else ""
        counts = word in _NUMBERS[2:] and after.endswith("s") and not _UNITS.match(after) and sentence.words[at + 1].islower()
        if (
            counts
            and sentence.words[at].islower()
            and not sentence.downward
            and before not in ("number", "of", "or", "the", "to", "over", "a")
        ):
            yield at, _NUMBERS.index(word)


def _other_number(sentence: _Sentence, rng: random.Random) -> Found:
    for at, number in _counted(sentence):
        other = rng.choice([other for other in range(2, len(_NUMBERS)) if other != number])
        yield sentence.with_(at, at + 1, _NUMBERS[other]), EXCLUDED


def _quantified(sentence: _Sentence, rng: random.Random) -> Found:
    for at, number in _counted(sentence):
        words, bound = rng.choice(("at least", "more than", "fewer than")), number + rng.randint(-3, 3)
        if 2 <= bound < len(_NUMBERS):
            holds = {"at least": number >= bound, "more than": number > bound, "fewer than": number < bound}[words]
            yield sentence.with_(at, at + 1, *words.split(), _NUMBERS[bound]), ONE_WAY if holds else EXCLUDED
    first, second = sentence.low[:2]
    many = second == "of" or (second.endswith("s") and second.isalpha()) or second in _PLURAL_PEOPLE
    if many and first in _QUANTIFIERS and _DOWNWARD.isdisjoint(sentence.low[1:]):
        for new, labels in _QUANTIFIERS[first]:
            yield sentence.with_(0, 1, "none" if new == "no" and second == "of" else new), labels


_QUANTIFIERS: dict[str, list[tuple[str, tuple[LabelName, LabelName]]]] = {
    "all": [("some", ONE_WAY), ("most", ONE_WAY), ("no", EXCLUDED)],
    "most": [("some", ONE_WAY), ("all", TURNED), ("no", EXCLUDED), ("few", EXCLUDED)],
    "many": [("some", ONE_WAY), ("no", EXCLUDED), ("few", EXCLUDED)],
    "several": [("some", ONE_WAY), ("no", EXCLUDED)],
    "some": [("all", TURNED), ("no", EXCLUDED)],
    "few": [("many", EXCLUDED)],
    "no": [("some", EXCLUDED), ("many", EXCLUDED)],
}


def _negated(sentence: _Sentence, rng: random.Random) -> Found:
    low = sentence.low
    if not _CLAUSES.isdisjoint(low):
        return
    verbs = [at for at, word in enumerate(low) if word in _BE]
    if len(verbs) != 1 or not 0 < verbs[0] < len(low) - 1:
        return
    at = verbs[0] + 1
    if low[at] == "not" and sum(word in _DOWNWARD for word in low) == 1:
        yield sentence.with_(at, at + 1), EXCLUDED
    elif sentence.downward:
        return
    elif low[0] != "there":
        yield sentence.with_(at, at, "not"), EXCLUDED
        for change in changes().get(low[at], ()):
            # What is open is not closed, but what is not closed may be neither. Before other words it may have another sense.
            if change.kind == "antonym" and at == len(low) - 1:
                yield sentence.with_(at, at + 1, "not", change.new), ONE_WAY
    elif low[at] in ("a", "an", "some", "several") and low[at + 1 : at + 2] not in ([], ["number"], ["lot"], ["very"]):
        yield sentence.with_(at, at + 1, "no"), EXCLUDED


def _shorter(sentence: _Sentence, rng: random.Random) -> Found:
    """Without the place or the time at the end, or without an adjective."""
    low = sentence.low
    if sentence.downward:
        return
    at = next((at for at in range(len(low) - 1, 3, -1) if low[at] in _PLACE), None)
    if at is not None:
        rest = low[at + 1 :]
        verb = any(word.endswith("ing") and before in _BE for before, word in pairwise(low[:at]))
        plain = rest and rest[0] in _DETERMINERS and 2 <= len(rest) <= 5 and _AFTER_NOUN.isdisjoint(rest)
        if verb and plain and low[at - 1] not in _NEEDS_PLACE:
            yield sentence.with_(at, len(low)), ONE_WAY
    if time := next((time for time in _TIMES if " ".join(low).endswith(f" {time}")), None):
        at = len(low) - len(time.split())
        # At least a subject, a verb and what follows it.
        if at > 3 and low[at - 1] not in _NEEDS_PLACE and "always" not in low:
            yield sentence.with_(at, len(low)), ONE_WAY
    for at in range(1, len(low) - 1):
        follows = low[at + 1]
        if (
            low[at] in _ADJECTIVES
            and low[at - 1] in _DETERMINERS
            and follows not in _AFTER_NOUN | _ADJECTIVES
            and follows.isalpha()
        ):
            yield sentence.with_(at, at + 1), ONE_WAY


def _swapped(sentence: _Sentence, rng: random.Random) -> Found:
    """Subject and object of a verb change places, in the active or the passive voice or both; SICK calls a swap neutral."""
    low = sentence.low
    verbs = [at for at, word in enumerate(low) if word in _BE]
    if len(verbs) != 1 or sentence.downward or not 1 < verbs[0] < len(low) - 3:
        return
    at = verbs[0]
    begin = at + 2
    end = next((end for end in range(begin + 1, min(begin + 4, len(low))) if low[end] in _WHO_ACTS), None)
    subject_ends = low[at - 1] in _WHO_ACTS and low[0] in _DETERMINERS and _PLACE.isdisjoint(low[:at]) and "of" not in low[:at]
    if end is None or not subject_ends or low[at + 1] not in _ACTS or low[begin] not in _DETERMINERS:
        return
    follows = low[end + 1] if end + 1 < len(low) else ""
    subject, object_ = sentence.words[:at], sentence.words[begin : end + 1]
    if (follows == "" or follows in _PLACE) and set(low[begin + 1 : end]) <= _ADJECTIVES and low[at - 1] != low[end]:
        be = ("are", "is", "were", "was")[2 * (low[at] in ("were", "was")) + (low[end] not in _PLURAL_PEOPLE)]
        passive = ("being", _ACTS[low[at + 1]], "by")
        yield sentence.with_(0, end + 1, *object_, be, low[at + 1], *subject), NEITHER
        # "His dog is being washed by a man" may be about the dog of another man.
        if low[begin] not in ("her", "his", "its", "their"):
            yield sentence.with_(0, end + 1, *object_, be, *passive, *subject), BOTH_WAYS
        yield sentence.with_(0, end + 1, *subject, low[at], *passive, *object_), NEITHER


_FINDERS: dict[Kind, Callable[[_Sentence, random.Random], Found]] = {
    "number": _other_number,
    "quantifier": _quantified,
    "negation": _negated,
    "phrase": _shorter,
    "role swap": _swapped,
}
