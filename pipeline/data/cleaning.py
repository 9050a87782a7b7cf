"""Drop reasons that need one row only; cross-row checks are in `dedup`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_ZERO_WIDTH = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
STRIPPED = _WHITE + _ZERO_WIDTH
"""Invisible characters, removed at both ends of a sentence."""
# A character that shows something: no white space, control or format character, mark without a letter, or lost character.
_VISIBLE = r"[^\pZ\pC\pM\x{FFFD}]"
_LETTER = re.compile(r"\w")
KEPT = 0
REASONS = ("not_selected", "no_gold_label", "empty", "duplicate", "contradictory_labels", "leaked_pair", "leaked_premise")
"""Drop reasons in the order of the tests; a row gets the first that applies. The code of a reason is its position plus one."""
HELD_OUT_REASONS = REASONS[:3]
"""The only reasons for development and test sets: these stay complete otherwise, to compare with published figures."""
NOT_SELECTED, NO_GOLD_LABEL, EMPTY, DUPLICATE, CONTRADICTORY, LEAKED_PAIR, LEAKED_PREMISE = range(1, len(REASONS) + 1)

Reasons = npt.NDArray[np.int8]


def is_empty(text: str) -> bool:
    """True if no character of a text shows something: tokenizers remove the others, so no model can say anything about it."""
    # Half a character (Cs) is a fault of its own. Letters and digits first, and each other character once: texts may be long.
    return not _LETTER.search(text) and all(
        ((kind := unicodedata.category(one)) != "Cs" and kind[0] in "ZCM") or one == "\ufffd" for one in set(text)
    )


def stripped(texts: pa.Array) -> pa.Array:
    """Texts without invisible characters at both ends; '' for one that `is_empty`."""
    texts = pc.utf8_trim(texts, characters=STRIPPED)
    return pc.if_else(pc.match_substring_regex(texts, _VISIBLE), texts, pa.scalar("", texts.type))


def own_reasons(batch: pa.RecordBatch, first: str, second: str, labelled: npt.NDArray[np.bool_]) -> Reasons:
    """(n,) `KEPT` or the reason code of every row, from the content of the row alone.

    Args:
        batch: n rows of a reader.
        first: one text column.
        second: the other text column.
        labelled: (n,) true if the row has a gold label or score.
    """
    empty = pc.or_(pc.equal(batch[first], ""), pc.equal(batch[second], "")).to_numpy(zero_copy_only=False)
    selected = batch["selected"].to_numpy(zero_copy_only=False)
    return np.select([~selected, ~labelled, empty], [NOT_SELECTED, NO_GOLD_LABEL, EMPTY], KEPT).astype(np.int8)


def tally(reason: Reasons) -> npt.NDArray[np.int64]:
    """(len(REASONS) + 1,) number of rows by reason code, starting with the kept rows."""
    return np.bincount(reason, minlength=len(REASONS) + 1)


def by_reason(counts: npt.NDArray[np.int64], names: Sequence[str] = REASONS) -> dict[str, int]:
    """Number of dropped rows by reason, from a `tally` or a sum of tallies."""
    return {name: int(number) for name, number in zip(names, counts[1:], strict=False)}
