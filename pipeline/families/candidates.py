"""Shared by the contrastive objectives: the sentences of a row, the blocks of candidates and the softmax over them.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.distributed import collectives
from pipeline.gaussian.distribution import Gaussian

Role = Literal["premise", "entailment", "contradiction", "neutral"]
Hidden = Mapping[Literal["E", "R"], Tensor]
"""Block → (n_r, n) bool, the columns that are not candidates of a row; a block without an entry has all."""
# The columns of a triplet.
_COLUMNS: tuple[Role, ...] = get_args(Role)


def roles_of(*, contradictions: bool, neutrals: bool) -> tuple[Role, ...]:
    """Premise, entailment, and one role for each block of negatives in use."""
    return (*_COLUMNS[:2], *(_COLUMNS[2:3] if contradictions else ()), *(_COLUMNS[3:] if neutrals else ()))


def columns(triplets: NDArray[np.int32], roles: Sequence[Role]) -> list[NDArray[np.int32]]:
    """(n_r, 4) triplets → one array of sentence numbers, (n_r,), for each role; −1 means that the row has no such sentence."""
    return [triplets[:, _COLUMNS.index(role)] for role in roles]


def stacked(encoded: Gaussian) -> Tensor:
    """m Gaussians as one tensor, (m, 2, D): mean and log-variance."""
    return torch.stack((encoded.mean, encoded.log_var), 1)


def same_sentence(own: Tensor, everyone: Tensor, first: int) -> Tensor:
    """(n_r, n) bool: true if another row of the global batch has the same sentence; false for the row itself.

    Args:
        own: (n_r,) a sentence number for each row of this worker, such as its premise.
        everyone: (n,) the same for the global batch.
        first: index of this worker's first row in `everyone`.
    """
    same = own[:, None] == everyone[None]
    rows = torch.arange(len(own), device=own.device)
    same[rows, first + rows] = False
    return same


def holds_back(two_way: Tensor, own: Tensor, everyone: Tensor) -> Tensor:
    """(n_r, n) bool: the columns of block R that are not negatives of a row, because its pair is known to hold both ways.

    Their premise is a sentence of the pair: its own pair turned round, and other pairs of these premises.

    Args:
        two_way: (n_r,) bool, whether the pair of each row of this worker is known to hold both ways.
        own: (n_r, 2) the sentence numbers of its premise and its entailment.
        everyone: (n,) those of the premises of the global batch.
    """
    return two_way[:, None] & (own[:, :, None] == everyone).any(1)


def gather(own: list[Gaussian], n: int) -> list[Gaussian]:
    """Gaussians of (n_r, D) → the same Gaussians from all workers, (n, D), in one exchange."""
    if collectives.world_size() == 1:
        return own
    everyone = collectives.gather_rows(torch.stack([torch.stack((g.mean, g.log_var), 1) for g in own], 1), n)
    return [Gaussian(everyone[:, k, 0], everyone[:, k, 1]) for k in range(len(own))]


def allowed(present: list[Tensor], n: int) -> Tensor | None:
    """(blocks·n,) bool: which columns of the blocks after E exist, over all workers; None if there are no such blocks.

    Args:
        present: (n_r,) bool for each block after E.
    """
    if not present:
        return None
    return (collectives.gather_rows(torch.stack(present, 1).to(torch.float32), n) > 0).T.reshape(-1)


def cross_entropy(similarities: Tensor, temperature: float, n: int, allowed: Tensor | None, hidden: Tensor | None) -> Tensor:
    """Sum over the rows of −log softmax at the diagonal of the first block.

    Args:
        similarities: (n_r, blocks·n).
        allowed: mask over the columns after the first block; false columns are left out.
        hidden: (n_r, n) mask over the first block; true entries are left out.
    """
    logits = similarities / temperature
    if allowed is not None or hidden is not None:
        excluded = torch.zeros((1 if hidden is None else len(logits), logits.shape[1]), dtype=torch.bool, device=logits.device)
        if hidden is not None:
            excluded[:, :n] = hidden
        if allowed is not None:
            excluded[:, n : n + len(allowed)] = ~allowed
        logits = logits.masked_fill(excluded, float("-inf"))
    shard = collectives.shard(n)
    return F.cross_entropy(logits, torch.arange(shard.start, shard.stop, device=logits.device), reduction="sum")
