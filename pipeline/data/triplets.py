"""Which contradiction goes with which entailment pair."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeline.data.schema import CONTRADICTION, ENTAILMENT

Ints = npt.NDArray[np.int64]


def match_contradictions(
    premise: npt.NDArray[np.integer],
    label: npt.NDArray[np.int8],
    how: Literal["cycle", "random"],
    seed: int,
) -> tuple[Ints, Ints]:
    """Rows of the triplets: one per entailment pair, in order.

    A premise has several entailments and m contradictions. `cycle`: its k-th entailment takes its (k mod m)-th
    contradiction, both counted from 0 in the order of the rows. `random`: each entailment draws one of the m,
    independently, by `seed`.

    Args:
        premise: (n,) id of each row's premise; equal ids are the same sentence. Not negative.
        label: (n,) label codes.
        how: see above.
        seed: used by `random` only.

    Returns:
        entailment: (t,) rows of the entailment pairs.
        contradiction: (t,) row of the contradiction pair of each, -1 where its premise has none.
    """
    entailment = np.flatnonzero(label == ENTAILMENT)
    contradiction = np.flatnonzero(label == CONTRADICTION)
    if not len(contradiction):
        return entailment, np.full(len(entailment), -1, dtype=np.int64)
    # Contradictions grouped by premise, in row order within a group; the group of entailment i is first[i] and the
    # m[i] - 1 places after it.
    contradiction = contradiction[np.argsort(premise[contradiction], kind="stable")]
    wanted = premise[entailment]
    first = np.searchsorted(premise[contradiction], wanted, side="left")
    m = np.searchsorted(premise[contradiction], wanted, side="right") - first
    if how == "cycle":
        turn = _occurrence(wanted) % np.maximum(m, 1)
    else:
        # One draw per entailment, with or without a choice, so that a draw does not hang on other contradictions.
        turn = np.floor(np.random.default_rng(seed).random(len(wanted)) * m).astype(np.int64)
    rows = contradiction[np.minimum(first + turn, len(contradiction) - 1)]
    return entailment, np.where(m > 0, rows, -1)


def _occurrence(values: npt.NDArray[np.integer]) -> Ints:
    """(n,) how many equal values stand before each one."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[starts, len(values)])
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - np.repeat(starts, sizes)
    return result
