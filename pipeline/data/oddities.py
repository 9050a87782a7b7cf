"""DuckDB macros for a sentence: its oddities (bits of a number), its script, its length in words.

Oddities are legal text that a person should look at before training; they never cause a row to be dropped. One or two cheap
tests show whether a sentence can have any oddity; only then do the expressions for each kind run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONG, VERY_LONG = 1_000, 10_000
"""Lengths in characters."""
FUNCTION_WORD_LENGTH = 8
"""An English sentence of at least this many words is expected to have a function word."""

# \s of RE2 covers only ASCII and lacks the vertical tab; U+0085 (next line) is white space but not in class Z.
_WHITE_SPACE = r"\s\x0b\x{85}\pZ"
# White space outside ASCII.
_WIDE_SPACE = r"[\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]"
# The bytes 0x80–0xBF of UTF-8, wrongly decoded as Windows-1252 or Latin-1.
_CONTINUATION = r"[\x{80}-\x{BF}€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
_HTML = (
    "&(?:[A-Za-z]{2,8}|#[0-9]+|#x[0-9A-Fa-f]+);|"
    r"</?(?i:a|b|blockquote|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|script|span|strong|su[bp]|table|t[dhr]|ul?)(?:\s[^<>]*)?/?>"
)
_RIGHT_TO_LEFT = r"[\p{Hebrew}\p{Arabic}\p{Syriac}\p{Thaana}\x{61C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}]"
_FUNCTION_WORDS = (
    "a|about|after|all|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|he|her|his|how|i|if|in|"
    "into|is|it|its|me|more|my|no|not|of|off|on|one|or|our|out|over|she|should|so|some|than|that|the|their|them|then|there|"
    "these|they|this|those|to|two|up|was|we|were|what|when|where|which|while|who|why|will|with|would|you|your"
)
# Searched first, as plain text: most English sentences contain one of these.
_COMMON_WORDS = ("the", "a", "is", "of", "in")


@dataclass(frozen=True, slots=True)
class Oddity:
    """One kind of oddity; `sql` is a condition on the sentence `t`."""

    name: str
    meaning: str
    sql: str


def _matching(name: str, meaning: str, pattern: str) -> Oddity:
    return Oddity(name, meaning, f"regexp_matches(t, '{pattern}')")


_ANY = (
    Oddity("long", f"more than {LONG:,} characters", f"length(t) > {LONG}"),
    Oddity("very_long", f"more than {VERY_LONG:,} characters", f"length(t) > {VERY_LONG}"),
    Oddity("all_capitals", "all capitals", r"upper(t) = t AND lower(t) <> t AND regexp_matches(t, '\pL.*\pL')"),
    Oddity("no_letter", "no letter (digits or signs only)", r"NOT regexp_matches(t, '\pL')"),
    Oddity("unbalanced_quotes", "odd number of double quotes", "(length(t) - length(replace(t, '\"', ''))) % 2 = 1"),
    _matching("tab_or_line_break", "tab or line break inside", r"[\t-\r\x{85}\x{2028}\x{2029}]"),
    _matching("control", "control character", r"[\x00-\x08\x0e-\x1f\x7f\x{80}-\x{84}\x{86}-\x{9f}]"),
    _matching("html", "HTML tag or entity", _HTML),
    _matching("treebank_bracket", "treebank bracket (-LRB-)", "-[LR][RSC]B-"),
    _matching("url", "web address", r"(?i)https?://|\bwww\."),
    _matching("tokenised", "tokenised punctuation (a space before it)", r" (?:[.,;:!?]|n''t|''(?:s|re|ll|ve|d|m))(?: |$)"),
)
# Matches every sentence that has an oddity of _ANY, unless it is long or has no lower-case letter.
_HINT = r"[<&\"\x00-\x1f\x7f]| [.,;:!?](?: |$)| n''t| ''|-[LR][RSC]B-|://|(?i:www)\."
_BEYOND_ASCII = (
    _matching("zero_width", "invisible character (zero-width, soft hyphen)", r"[\x{AD}\x{200B}-\x{200D}\x{2060}\x{FEFF}]"),
    _matching("right_to_left", "right-to-left letter or mark", _RIGHT_TO_LEFT),
    _matching("replacement_character", "replacement character (U+FFFD)", r"\x{FFFD}"),
    _matching("mojibake", "mojibake (Ã© for é, â€™ for ’)", rf"[ÂÃ]{_CONTINUATION}|â€|â\x{{80}}|ï»¿|ï¿½|ðŸ"),
    Oddity("not_nfc", "not in Unicode form NFC", "nfc_normalize(t) <> t"),
)
_NO_FUNCTION_WORD = Oddity(
    "no_function_word",
    f"no English function word in {FUNCTION_WORD_LENGTH} words or more",
    f"NOT regexp_matches(t, '(?i)\\b(?:{_FUNCTION_WORDS})\\b')",
)

ODDITIES: tuple[Oddity, ...] = (*_ANY, *_BEYOND_ASCII, _NO_FUNCTION_WORD)
"""Bit k of the macro `oddities` stands for the k-th kind."""

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


def macros() -> list[str]:
    """SQL statements that define these macros for a stripped sentence `t`:

    words(t): number of words, that is of runs without white space.
    sentence_key(t): equal for sentences that differ only in the amount of white space.
    script(t, ascii_only): script of most of its letters, as a position in `SCRIPTS`.
    oddities(t, ascii_only, words, script): bits, see `ODDITIES`. "No function word" is tested only in Latin script.
    """
    # True if counting single spaces would not count words. CASE, because OR evaluates all its terms for every row.
    odd_space = (
        "(CASE WHEN contains(t, '  ') OR regexp_matches(t, '[\\x00-\\x1f]') THEN true "
        f"WHEN strlen(t) = length(t) THEN false ELSE regexp_matches(t, '{_WIDE_SPACE}') END)"
    )
    runs = f"len(regexp_extract_all(t, '[^{_WHITE_SPACE}]+'))"
    collapsed = f"regexp_replace(t, '[{_WHITE_SPACE}]+', ' ', 'g')"
    return [
        f"CREATE TEMP MACRO words(t) AS CASE WHEN {odd_space} THEN {runs} ELSE length(t) - length(replace(t, ' ', '')) + 1 END",
        f"CREATE TEMP MACRO sentence_key(t) AS hash(CASE WHEN {odd_space} THEN {collapsed} ELSE t END)",
        f"CREATE TEMP MACRO script(t, ascii_only) AS {_script()}",
        f"CREATE TEMP MACRO oddities(t, ascii_only, words, script) AS {_oddities()}",
    ]


def _script() -> str:
    has_latin = f"CASE WHEN regexp_matches(t, '[a-zA-Z]') OR regexp_matches(t, '\\p{{Latin}}') THEN {_LATIN} ELSE 0 END"
    kept = [f"[^{letters}]" for letters in _LETTERS.values()]
    other = f"[^\\pL]|[{''.join(_LETTERS.values())}]"
    counts = ", ".join(f"length(regexp_replace(t, '{removed}', '', 'g'))" for removed in (*kept, other))
    most = f"CASE WHEN list_max([{counts}]) = 0 THEN 0 ELSE list_position([{counts}], list_max([{counts}])) END"
    return f"CASE WHEN ascii_only OR NOT regexp_matches(t, '{_BEYOND_LATIN}') THEN {has_latin} ELSE {most} END"


def _oddities() -> str:
    may_be_odd = f"regexp_matches(t, '{_HINT}') OR NOT regexp_matches(t, '[a-z]') OR length(t) > {LONG} OR NOT ascii_only"
    common = " ".join(f"WHEN contains(t, ' {word} ') THEN 0" for word in _COMMON_WORDS)
    no_word = f"WHEN words < {FUNCTION_WORD_LENGTH} OR script <> {_LATIN} THEN 0 {common}"
    return (
        f"(CASE WHEN {may_be_odd} THEN {_bits(_ANY)} ELSE 0 END)"
        f" + (CASE WHEN ascii_only THEN 0 ELSE {_bits(_BEYOND_ASCII)} END)"
        f" + (CASE {no_word} ELSE {_bits([_NO_FUNCTION_WORD])} END)"
    )


def _bits(kinds: Sequence[Oddity]) -> str:
    return " + ".join(f"(CASE WHEN {kind.sql} THEN {1 << ODDITIES.index(kind)} ELSE 0 END)" for kind in kinds)
