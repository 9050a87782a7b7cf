"""Statistics of one prepared set, computed by DuckDB in bounded memory: direction and oddities.

Oddities are legal text that a person should look at before training; they never cause a row to be dropped. The text of a set is
read once, into a table with a few small numbers per row; all statistics come from that table. Row numbers count from 1, in the
order of the set's Parquet file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.data.dedup import WHITE_SPACE
from pipeline.data.schema import LABELS
from pipeline.data.scratch import Database

FIRST_ROWS = 5
"""Number of row numbers to keep for each kind of finding."""
LONG, VERY_LONG = 1_000, 10_000
"""Lengths in characters."""
FUNCTION_WORD_LENGTH = 8
"""An English sentence of at least this many words is expected to have a function word."""

# The bytes 0x80–0xBF of UTF-8, wrongly decoded as Windows-1252 or Latin-1.
_CONTINUATION = r"[\x{80}-\x{BF}€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
_HTML = (
    "&(?:[A-Za-z]{2,8}|#[0-9]+|#x[0-9A-Fa-f]+);|"
    r"</?(?i:a|b|blockquote|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|script|span|strong|su[bp]|table|t[dhr]|ul?)(?:\s[^<>]*)?/?>"
)
_FUNCTION_WORDS = (
    "a|about|after|all|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|he|her|his|how|i|if|in|"
    "into|is|it|its|me|more|my|no|not|of|off|on|one|or|our|out|over|she|should|so|some|than|that|the|their|them|then|there|"
    "these|they|this|those|to|two|up|was|we|were|what|when|where|which|while|who|why|will|with|would|you|your"
)
_ONLY_ENGLISH = frozenset(("the", "and", "with", "this", "that", "from", "they", "their", "there", "while", "two", "people"))
_LETTERS = {
    "Latin": r"\p{Latin}",
    "Greek": r"\p{Greek}",
    "Cyrillic": r"\p{Cyrillic}",
    "Armenian": r"\p{Armenian}",
    "Hebrew": r"\p{Hebrew}",
    "Arabic": r"\p{Arabic}",
    "Indic": r"\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}",
    "Thai": r"\p{Thai}",
    "Han or Kana": r"\p{Han}\p{Hiragana}\p{Katakana}",
    "Hangul": r"\p{Hangul}",
    "Georgian": r"\p{Georgian}",
    "Ethiopic": r"\p{Ethiopic}",
}
SCRIPTS: tuple[str, ...] = ("none", *_LETTERS, "other")
"""The macro `script` returns a position in this tuple; the first entry is for text without letters."""
_LATIN = SCRIPTS.index("Latin")
# Everything except Latin letters and the marks, punctuation, symbols and emoji of the usual blocks.
_BEYOND_LATIN = r"[^\x00-\x{36F}\x{1E00}-\x{1EFF}\x{2000}-\x{2BFF}\x{FE00}-\x{FE0F}\x{FEFF}\x{FFFD}\x{1F000}-\x{1FAFF}]"

# Kind → meaning, and the condition on a sentence `t` of so many `words`, or a pattern to find in it.
_ODDITIES = {
    "long": (f"more than {LONG:,} characters", f"length(t) > {LONG}"),
    "very_long": (f"more than {VERY_LONG:,} characters", f"length(t) > {VERY_LONG}"),
    "no_letter": ("no letter (digits or signs only)", r"NOT regexp_matches(t, '\pL')"),
    "control": ("control character", r"/[\x00-\x08\x0e-\x1f\x7f\x{80}-\x{84}\x{86}-\x{9f}]"),
    "html": ("HTML tag or entity", f"/{_HTML}"),
    "treebank_bracket": ("treebank bracket (-LRB-)", "/-[LR][RSC]B-"),
    "replacement_character": ("replacement character (U+FFFD)", r"/\x{FFFD}"),
    "mojibake": ("mojibake (Ã© for é, â€™ for ’)", rf"/[ÂÃ]{_CONTINUATION}|â€|â\x{{80}}|ï»¿|ï¿½|ðŸ"),
    "no_function_word": (
        f"no English function word in {FUNCTION_WORD_LENGTH} words or more",
        f"words >= {FUNCTION_WORD_LENGTH} AND script(t) = {_LATIN} AND NOT regexp_matches(t, '(?i)\\b(?:{_FUNCTION_WORDS})\\b')",
    ),
}
MEANINGS = {kind: meaning for kind, (meaning, _) in _ODDITIES.items()} | {
    "other_script": "mostly in another script than the set",
}
"""Name of every kind of finding in `oddities` → its meaning."""


def define_macros(connection: Database) -> None:
    """Define these macros for a stripped sentence `t`:

    script(t): script of most of its letters, as a position in `SCRIPTS`.
    oddities(t, words): bits of a number; bit k is set for the k-th kind.
    """
    kept = [f"[^{letters}]" for letters in _LETTERS.values()]
    other = f"[^\\pL]|[{''.join(_LETTERS.values())}]"
    counts = ", ".join(f"length(regexp_replace(t, '{removed}', '', 'g'))" for removed in (*kept, other))
    most = f"CASE WHEN list_max([{counts}]) = 0 THEN 0 ELSE list_position([{counts}], list_max([{counts}])) END"
    latin = f"CASE WHEN regexp_matches(t, '\\p{{Latin}}') THEN {_LATIN} ELSE 0 END"
    connection.execute(
        f"CREATE TEMP MACRO script(t) AS CASE WHEN regexp_matches(t, '{_BEYOND_LATIN}') THEN {most} ELSE {latin} END"
    )
    conditions = (f"regexp_matches(t, '{sql[1:]}')" if sql.startswith("/") else sql for _, sql in _ODDITIES.values())
    bits = " + ".join(f"(CASE WHEN {condition} THEN {1 << k} ELSE 0 END)" for k, condition in enumerate(conditions))
    connection.execute(f"CREATE TEMP MACRO oddities(t, words) AS {bits}")


def measure(connection: Database, path: Path, sides: tuple[str, str], label: str | None) -> dict[str, Any]:
    """The statistics of a Parquet file of pairs.

    Args:
        connection: a database with the macros of `define_macros`.
        path: a file that stage prepare wrote.
        sides: its two columns of sentences.
        label: its column of labels, if it has one.

    Returns:
        scripts: number of sentences (both sides) by the script of most of their letters; `dominant_script` is that of the set.
        oddities: kind → number of rows, number of sentences on each side, first row numbers. Kinds that do not occur are left
            out. Missing function words count only if the dominant script is Latin.
        labels: rows by label, and `_direction`, if the file has labels.
    """

    def rows(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query).fetchall()

    unspaced = _LETTERS["Thai"] + _LETTERS["Han or Kana"]
    # Where a script has no spaces, each letter counts as a word.
    word = f"[{unspaced}]|[^{unspaced}{WHITE_SPACE}]+"
    texts = ", ".join(f"{side} AS t_{k}, len(regexp_extract_all({side}, '{word}')) AS words_{k}" for k, side in enumerate(sides))
    numbers = ", ".join(
        f"words_{k}::INTEGER AS words_{k}, script(t_{k})::UTINYINT AS script_{k}, oddities(t_{k}, words_{k})::INTEGER AS odd_{k}"
        for k in range(2)
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE measured AS SELECT row, label, {numbers} FROM (SELECT "
        f"file_row_number + 1 AS row, {label or 'NULL'} AS label, {texts} FROM read_parquet($path, file_row_number = true))",
        {"path": str(path)},
    )
    both = " UNION ALL ".join(f"SELECT script_{k} AS script FROM measured" for k in range(2))
    scripts = {SCRIPTS[k]: n for k, n in rows(f"SELECT script, count(*) FROM ({both}) GROUP BY 1 ORDER BY 1")}
    dominant = max(scripts, key=lambda script: (script != SCRIPTS[0], scripts[script]))
    conditions = {
        kind: tuple(f"odd_{k} & {1 << bit} <> 0" for k in range(2))
        for bit, kind in enumerate(_ODDITIES)
        if kind != "no_function_word" or dominant == "Latin"
    }
    usual = (SCRIPTS.index(dominant), SCRIPTS.index("none"))
    conditions["other_script"] = tuple(f"script_{k} NOT IN {usual}" for k in range(2))
    oddities: dict[str, dict[str, Any]] = {}
    for kind, (first, second) in conditions.items():
        ((number, left, right, first_rows),) = rows(
            f"SELECT count(*), count_if({first}), count_if({second}), min(row, {FIRST_ROWS}) "
            f"FROM measured WHERE ({first}) OR ({second})"
        )
        if number:
            oddities[kind] = {"rows": number, sides[0]: left, sides[1]: right, "first_rows": first_rows}
    found: dict[str, Any] = {"scripts": scripts, "dominant_script": dominant, "oddities": oddities}
    if label is None:
        return found
    labels = dict(rows("SELECT label, count(*) FROM measured GROUP BY 1"))
    return found | {"labels": {name: labels.get(name, 0) for name in LABELS}, "direction": _direction(connection)}


def _direction(connection: Database) -> dict[str, Any]:
    """Length and direction of the entailment pairs: `pairs` is their number; `length_only` and `premise_not_longer` are the
    percentages in which "the longer sentence entails" is right (ties count half) and the premise is not longer.
    """
    query = "SELECT count(*), count_if(words_0 > words_1), count_if(words_0 = words_1) FROM measured WHERE label = 'entailment'"
    ((pairs, longer, ties),) = connection.execute(query).fetchall()
    if not pairs:
        return {"pairs": 0}
    right = percent(longer + ties / 2, pairs)
    return {"pairs": pairs, "length_only": right, "premise_not_longer": percent(pairs - longer, pairs)}


def percent(part: float, whole: float) -> float:
    """`part` of `whole` in percent, rounded; 0 of 0 is 0."""
    return round(100 * part / whole, 4) if whole else 0.0


def is_english(texts: Iterable[str]) -> bool:
    """True if words that only English has are frequent: they are some 11 % of the words of SNLI, SICK and MultiNLI."""
    words = [word for text in texts for word in re.findall(r"\w+", text.lower())]
    return sum(word in _ONLY_ENGLISH for word in words) > 0.03 * len(words)
