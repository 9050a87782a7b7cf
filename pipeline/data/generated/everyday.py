"""Everyday and business sentences, drawn from the context-free grammar in `pipeline/data/lexicon/sentences.json`.

They have no labels. `pipeline.families.pairs.minimal_pairs` makes labelled pairs of them.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pipeline.data.lexicon
from pipeline.data.generated.premises import Split, split_of

_LEXICON = Path(pipeline.data.lexicon.__file__).parent
_RULES: dict[str, list[str]] = json.loads((_LEXICON / "sentences.json").read_text(encoding="utf-8"))
_WORDNET = json.loads((_LEXICON / "wordnet.json").read_text(encoding="utf-8"))["wider"]
_RULES |= {f"any_{wide}": narrower for wide, narrower in _WORDNET.items()}
_A = re.compile(r"\b([Aa])(?= [aeiou])(?! (?:uni|use|eur|one))")


def everyday_sentences(split: Split, seed: int) -> Iterator[str]:
    """Different sentences of a split, without end (the grammar has millions). A sentence is always in the same split."""
    rng = random.Random(zlib.crc32(f"everyday {split} {seed}".encode()))
    seen: set[str] = set()
    while True:
        text = _as_sentence(_filled("{sentence}", rng))
        if text not in seen and split_of(text) == split:
            seen.add(text)
            yield text


def two_events(rng: random.Random) -> tuple[str, str]:
    """Two sentences that say what one person did; they begin with different verbs."""
    who, when = _filled("{who}", rng), rng.choice(("", _filled(" {when}", rng)))
    first = rng.choice(_RULES["did"])
    second = rng.choice([other for other in _RULES["did"] if other.split()[0] != first.split()[0]])
    return _as_sentence(f"{who} {_filled(first, rng)}{when}."), _as_sentence(f"{who} {_filled(second, rng)}.")


def _as_sentence(text: str) -> str:
    """The text with a capital, and "an" where it is right."""
    text = _A.sub(r"\1n", text)
    return text[0].upper() + text[1:]


def _filled(phrase: str, rng: random.Random) -> str:
    """A phrase with random phrases for the names of rules in it."""
    return re.sub(r"\{(\w+)\}", lambda name: _filled(rng.choice(_RULES[name[1]]), rng), phrase)
