"""How well sentence operators do: the rank of the target in a pool that also holds the inputs (InterSent, 2023, section 4).

Shapes: n rows of one operation, c sentences in the pool, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.schema import OPERATIONS, TWO_INPUTS
from pipeline.data.token_sets import OperationSet

MRR_AT = 10
"""A target with a higher rank counts as not retrieved in the mean reciprocal rank."""
# Rows compared with the pool at a time.
_ROWS = 1024

Operator = Callable[[str, Tensor, Tensor | None], Tensor]
"""(operation, (n, D) first inputs, (n, D) second inputs or None) → (n, D) outputs."""


def arithmetic(operation: str, a: Tensor, b: Tensor | None) -> Tensor:
    """Sum and difference of unit vectors; the input itself for the other operations."""
    if b is None:
        return a
    a, b = F.normalize(a), F.normalize(b)
    return a + b if operation == "fusion" else a - b


def first_input(operation: str, a: Tensor, b: Tensor | None) -> Tensor:
    """The first input, whatever the operation: what an operator that learned nothing would give."""
    return a


def target_ranks(mean: Tensor, rows: OperationSet, operator: Operator) -> NDArray[np.int64]:
    """(n,) the rank of each row's target, from 1, by the cosine with the operator's output.

    The pool of a row are all targets and inputs of its operation in the set. For reconstruction, whose output is its input, the
    row's own input is left out. Of sentences with the same cosine as the target, all count as higher.

    Args:
        mean: (S, D) embeddings of the sentences of the store.
        rows: rows of any operations.
    """
    ranks = np.zeros(len(rows), np.int64)
    for code in np.unique(rows.operation).tolist():
        own = np.flatnonzero(rows.operation == code)
        a, b, target = (column[own] for column in (rows.a, rows.b, rows.target))
        two = OPERATIONS[code] in TWO_INPUTS
        pool = np.unique(np.concatenate((a, target, b) if two else (a, target)))
        candidates = F.normalize(mean[_index(pool)])
        output = operator(OPERATIONS[code], mean[_index(a)], mean[_index(b)] if two else None)
        for start in range(0, len(own), _ROWS):
            part = slice(start, start + _ROWS)
            cosine = F.normalize(output[part]) @ candidates.T
            at = torch.from_numpy(np.searchsorted(pool, target[part])).to(cosine.device)[:, None]
            reached = cosine.gather(1, at)
            # NaN is higher than everything.
            higher = ~(cosine < reached)
            higher.scatter_(1, at, False)
            if OPERATIONS[code] == "reconstruction":
                left_out = torch.from_numpy(np.searchsorted(pool, a[part])).to(cosine.device)[:, None]
                higher.scatter_(1, left_out, False)
            ranks[own[part]] = 1 + higher.sum(1).cpu().numpy()
    return ranks


def reciprocal(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 / rank, 0 for ranks over 10; the mean is MRR@10."""
    return np.where(ranks <= MRR_AT, 1.0 / ranks, 0.0)


def operator_mrr(ranks: NDArray[np.int64], operation: NDArray[np.int8]) -> float:
    """The mean over the operations of MRR@10."""
    gained = reciprocal(ranks)
    return float(np.mean([gained[operation == code].mean() for code in np.unique(operation)]))


def _index(numbers: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))
