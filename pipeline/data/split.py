"""The two parts of the development set: `dev` to choose a model, `promotion` to decide on its promotion.

A score on the pairs that were used to choose a model is too high: the best of several equal models is the luckiest. So promotion
is decided on pairs that are used for no other choice: not for checkpoint, grid point, seed, threshold or recipe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data.schema import PROMOTION, RawRows

FEWEST_GROUPS = 20
"""Premises, documents or whole sentences that the promotion part needs, since its interval comes from drawing them.

Measured on 4,000 pairs of equal models, by PR-AUC and by shares, with groups of equal and of uneven size: how often the rule
promotes at a first attempt, which may be 1.25 % at most. With 2 groups up to 5.5 %, with 3 up to 1.9 %, with 5 up to 0.8 %, with
10 and 20 up to 1.1 %, with 50 up to 1.3 %. Twenty leave room for groups that differ more in size.
"""


def too_few(name: str, number: int, groups: str) -> str:
    """What is wrong with a promotion part of so many groups; '' if it has enough.

    Args:
        name: the set.
        groups: what they are, such as premises.
    """
    if number >= FEWEST_GROUPS:
        return ""
    return (
        f"the set {name} has {number} {groups}; the rule of promotion needs {FEWEST_GROUPS}, since with fewer, chance promotes "
        "too often: add development data or raise data.promotion_share (params.yaml)"
    )


def in_promotion(premises: Sequence[str], share: float) -> npt.NDArray[np.bool_]:
    """(n,) true where the pairs of a premise are in the promotion part.

    Only the hash of the premise decides: a pair is in the part if the first 64 bits of the SHA-256 of the premise's text, as a
    number in [0, 1), are below `share`. So all pairs of a premise are in one part, other rows have no influence, and a larger
    share keeps the pairs of a smaller share. As in the leak rules, a run of white space counts as one space.
    """
    limit = share * 2**64
    heads = (hashlib.sha256(" ".join(premise.split()).encode()).digest()[:8] for premise in premises)
    return np.fromiter((int.from_bytes(head, "big") < limit for head in heads), dtype=np.bool_, count=len(premises))


def part_of(rows: RawRows, name: str, share: float) -> RawRows:
    """The rows of one part of a development set; `name` is `dev` or `promotion`."""

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            promotion = in_promotion(batch["premise"].to_pylist(), share)
            yield batch.filter(pa.array(promotion if name == PROMOTION else ~promotion))

    return replace(rows, batches=batches)
