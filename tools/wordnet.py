"""Writes wordnet.json from WordNet 3.0: `python -m tools.wordnet DICT`.

DICT is the folder with data.noun, index.noun and cntlist.rev (/usr/share/wordnet of Debian's package wordnet-base). WordNet
counts how often a word has each sense in tagged text. A word is taken if it is mostly of one part of speech and mostly has its
first sense.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LICENCE = (
    "Derived from WordNet 3.0. Copyright 2006 by Princeton University. All rights reserved. THIS SOFTWARE AND DATABASE IS "
    'PROVIDED "AS IS" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED. '
    "Licence: https://wordnet.princeton.edu/license-and-commercial-use"
)
_LEXICON = Path(__file__).parents[1] / "pipeline/data/lexicon"
# Nouns that replace a narrower one without making a sentence odd, with the number of their sense.
WIDER: dict[str, int] = json.loads((_LEXICON / "everyday.json").read_text(encoding="utf-8"))["from_wordnet"]
_POS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
_MOST_OF_A_WORD, _MOST_OF_A_SENSE = 0.75, 0.6

Counts = dict[tuple[str, str], dict[int, int]]
Pointers = dict[str, list[tuple[str, str, str]]]
"""Offset of a synset → symbol, offset and "source word, target word" (hexadecimal numbers) of each pointer."""


def main(folder: Path, to: Path) -> None:
    """Write the relations between common words: `wider` (noun → narrower ones) and `opposite` (pairs of adjectives)."""
    counts = _counts(folder)
    index = {pos: dict(_index(folder, pos)) for pos in ("noun", "verb", "adj", "adv")}
    usual = {
        pos: {word: senses[0] for word, senses in index[pos].items() if _is_usual(word, pos, index, counts)} for pos in index
    }
    pointers, _ = _data(folder, "noun")
    general = {index["noun"][name][sense - 1]: name for name, sense in WIDER.items()}

    @cache
    def wider(synset: str) -> tuple[str, ...]:
        """Synsets of `general` above one, nearest first."""
        above = [target for symbol, target, _ in pointers[synset] if symbol in ("@", "@i")]
        return tuple(dict.fromkeys(found for one in above for found in ((one,) if one in general else ()) + wider(one)))

    narrower: dict[str, list[str]] = defaultdict(list)
    for word, synset in usual["noun"].items():
        is_name = any(symbol == "@i" for symbol, _, _ in pointers[synset])
        # A plural, such as "binoculars", has other articles.
        if not is_name and not word.endswith("s") and (above := wider(synset)) and word != general[above[0]]:
            narrower[general[above[0]]].append(word)
    pointers, words = _data(folder, "adj")
    opposite = {
        tuple(sorted((word, other)))
        for word, synset in usual["adj"].items()
        for symbol, target, ends in pointers[synset]
        if symbol == "!" and words[synset][int(ends[:2], 16) - 1] == word
        if (other := words[target][int(ends[2:], 16) - 1]) in usual["adj"]
        if all(counts.get((each, "adj")) for each in (word, other))
    }
    content = {
        "licence": LICENCE,
        "opposite": sorted(opposite),
        "wider": {name: sorted(narrower[name]) for name in sorted(narrower)},
    }
    to.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _is_usual(word: str, pos: str, index: dict[str, dict[str, list[str]]], counts: Counts) -> bool:
    if not re.fullmatch("[a-z]{3,}", word):
        return False
    senses = counts.get((word, pos), {})
    here, everywhere = sum(senses.values()), sum(sum(counts.get((word, other), {}).values()) for other in index)
    if not here:
        # Never seen in tagged text: only words with a single meaning.
        return not everywhere and [len(index[other].get(word, ())) for other in index] == [int(other == pos) for other in index]
    return here >= _MOST_OF_A_WORD * everywhere and senses.get(1, 0) >= _MOST_OF_A_SENSE * here


def _counts(folder: Path) -> Counts:
    found: Counts = defaultdict(dict)
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, sense, count = line.split()
        word, _, rest = key.partition("%")
        found[word, _POS[rest[0]]][int(sense)] = int(count)
    return dict(found)


def _index(folder: Path, pos: str) -> Iterator[tuple[str, list[str]]]:
    """Each word and its synsets, the first sense first."""
    for fields in _lines(folder / f"index.{pos}"):
        yield fields[0], fields[-int(fields[2]) :]


def _data(folder: Path, pos: str) -> tuple[Pointers, dict[str, list[str]]]:
    """The pointers and the words of each synset."""
    pointers: Pointers = {}
    words: dict[str, list[str]] = {}
    for fields in _lines(folder / f"data.{pos}"):
        end = 4 + 2 * int(fields[3], 16)
        words[fields[0]] = [re.sub(r"\(.*\)", "", word) for word in fields[4:end:2]]
        rest = fields[end + 1 : end + 1 + 4 * int(fields[end])]
        pointers[fields[0]] = list(zip(rest[::4], rest[1::4], rest[3::4], strict=True))
    return pointers, words


def _lines(path: Path) -> Iterator[list[str]]:
    """Fields of the lines; the lines of the licence begin with spaces."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            yield line.split(" | ")[0].split()


if __name__ == "__main__":
    main(Path(sys.argv[1]), _LEXICON / "wordnet.json")
