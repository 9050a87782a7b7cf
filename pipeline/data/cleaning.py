"""Which rows are kept, and why the others are not. Pure array functions on sentence ids: no text, no files.

Sentences are compared by id (`sentence_ids`): equal ids are equal text after every run of white space is made one
space. Case counts. N is the number of different sentences of all sets together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.schema import LABELS, NO_LABEL

KEPT = 0
REASONS = ("no_gold_label", "empty", "duplicate", "contradictory_labels", "leaked_pair", "leaked_premise")
"""Why a row is dropped, in the order of the tests: a row has the first that fits. Its code is the position plus one."""
HELD_OUT_REASONS = REASONS[:2]
"""All that is dropped from development and test sets: they stay complete, to compare with published figures."""
NO_GOLD_LABEL, EMPTY, DUPLICATE, CONTRADICTORY, LEAKED_PAIR, LEAKED_PREMISE = range(1, len(REASONS) + 1)

# RE2's \s is ASCII only and lacks the vertical tab; U+0085 (next line) is white space but not of class Z.
_WHITE_SPACE = r"[\s\x0b\x{85}\pZ]+"

Ids = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class IdPairs:
    """n pairs of one set as ids."""

    premise: Ids
    hypothesis: Ids

    def key(self, sentences: int) -> npt.NDArray[np.int64]:
        """(n,) one number per ordered pair, given the number N of sentences."""
        return self.premise.astype(np.int64) * sentences + self.hypothesis

    def __getitem__(self, rows: Bools) -> IdPairs:
        return IdPairs(self.premise[rows], self.hypothesis[rows])


def sentence_ids(columns: Sequence[pa.ChunkedArray]) -> tuple[list[Ids], int]:
    """Ids of the sentences of several text columns, numbered over all of them by first appearance; and N."""
    chunks = [pc.replace_substring_regex(chunk, _WHITE_SPACE, " ") for column in columns for chunk in column.chunks]
    encoded = pa.chunked_array(chunks, pa.large_string()).dictionary_encode()
    # All chunks share one dictionary, which grows from chunk to chunk.
    ids = np.concatenate([np.zeros(0, np.int32), *(chunk.indices.to_numpy() for chunk in encoded.chunks)])
    sentences = max((len(chunk.dictionary) for chunk in encoded.chunks), default=0)
    return np.split(ids, np.cumsum([len(column) for column in columns])[:-1]), sentences


def blank(first: pa.ChunkedArray, second: pa.ChunkedArray) -> Bools:
    """(n,) whether either of two stripped text columns is ''."""
    return pc.or_(pc.equal(first, ""), pc.equal(second, "")).to_numpy()


def train_reasons(
    pairs: IdPairs, label: npt.NDArray[np.int8], empty: Bools, held_out: Sequence[IdPairs], sentences: int
) -> npt.NDArray[np.int8]:
    """(n,) `KEPT` or the reason code of every training row.

    Args:
        pairs: n training pairs, all files in order.
        label: (n,) label codes.
        empty: (n,) premise or hypothesis is blank.
        held_out: the kept pairs of the development set and of every NLI test set.
        sentences: N.
    """
    reason = np.full(len(label), KEPT, dtype=np.int8)
    key = pairs.key(sentences)
    _mark(reason, NO_GOLD_LABEL, label == NO_LABEL)
    _mark(reason, EMPTY, empty)
    _mark(reason, DUPLICATE, _on_kept(repeated, key, label, reason))
    _mark(reason, CONTRADICTORY, _on_kept(contradictory, key, label, reason))
    leaked = np.zeros(sentences, dtype=np.bool_)
    for other in held_out:
        _mark(reason, LEAKED_PAIR, np.isin(key, other.key(sentences)))
        leaked[other.premise] = True
    _mark(reason, LEAKED_PREMISE, leaked[pairs.premise])
    return reason


def held_out_reasons(label: npt.NDArray[np.int8], empty: Bools) -> npt.NDArray[np.int8]:
    """(n,) `KEPT` or the reason code of every row of a development or test set."""
    reason = np.full(len(label), KEPT, dtype=np.int8)
    _mark(reason, NO_GOLD_LABEL, label == NO_LABEL)
    _mark(reason, EMPTY, empty)
    return reason


def repeated(key: npt.NDArray[np.int64], label: npt.NDArray[np.int8]) -> Bools:
    """(n,) whether the same pair with the same label stands in an earlier row."""
    result = np.ones(len(key), dtype=np.bool_)
    result[np.unique(key * len(LABELS) + label, return_index=True)[1]] = False
    return result


def contradictory(key: npt.NDArray[np.int64], label: npt.NDArray[np.int8]) -> Bools:
    """(n,) whether the same pair also stands with another label."""
    unique, inverse = np.unique(key, return_inverse=True)
    labels_seen = np.zeros((len(unique), len(LABELS)), dtype=np.bool_)
    labels_seen[inverse, label] = True
    return (labels_seen.sum(axis=1) > 1)[inverse]


def count(reason: npt.NDArray[np.int8], names: Sequence[str] = REASONS) -> dict[str, int]:
    """Rows dropped by reason."""
    counts = np.bincount(reason, minlength=len(REASONS) + 1)[1:]
    return {name: int(number) for name, number in zip(names, counts, strict=False)}


def _mark(reason: npt.NDArray[np.int8], code: int, rows: Bools) -> None:
    reason[(reason == KEPT) & rows] = code


def _on_kept(
    test: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int8]], Bools],
    key: npt.NDArray[np.int64],
    label: npt.NDArray[np.int8],
    reason: npt.NDArray[np.int8],
) -> Bools:
    kept = reason == KEPT
    result = np.zeros(len(reason), dtype=np.bool_)
    result[kept] = test(key[kept], label[kept])
    return result
