"""Epoch → global batches → length groups. Pure functions of their arguments: a position in training is just a step number."""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.tokens import TokenStore


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Optimizer steps in one pass over the rows."""
    return -(-rows // batch_size)


def global_batch(rows: int, batch_size: int, seed: int, step: int) -> NDArray[np.int64]:
    """Row numbers of the global batch of a step, counted over all epochs.

    Each epoch is a fresh permutation cut into `steps_per_epoch` batches whose sizes differ by at most one, none larger than
    `batch_size`: every row is used once an epoch and no batch is a small remainder.
    """
    steps = steps_per_epoch(rows, batch_size)
    epoch, within = divmod(step, steps)
    order = _epoch_order(rows, seed, epoch)
    small, larger = divmod(rows, steps)
    start = within * small + min(within, larger)
    return order[start : start + small + (within < larger)]


@lru_cache(maxsize=2)
def _epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(rows)


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Sentences of similar length, padded to the longest of them.

    Attributes:
        ids: (g, L) int64 token ids.
        mask: (g, L) 1 on tokens, 0 on padding.
    """

    ids: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class GroupedSentences:
    """Length groups of m sentences and the way back to the order they were asked in.

    Attributes:
        groups: the groups, shortest first.
        inverse: (m,) int64; `torch.cat(outputs of groups)[inverse]` is in the order asked.
    """

    groups: list[LengthGroup]
    inverse: Tensor


def group_by_length(
    store: TokenStore, sentences: NDArray[np.integer], groups: int, device: torch.device | str = "cpu"
) -> GroupedSentences:
    """Sort sentences by length and cut them into `groups` nearly equal parts, each padded to its own longest.

    Args:
        sentences: (m,) sentence numbers in the store.
    """
    order = np.argsort(store.offsets[sentences + 1] - store.offsets[sentences], kind="stable")
    parts = [part for part in np.array_split(sentences[order], min(groups, len(order))) if len(part)]
    padded = [_group(store, part, device) for part in parts]
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.arange(len(order))
    return GroupedSentences(padded, torch.from_numpy(inverse).to(device))


def token_budget_batches(lengths: NDArray[np.integer], order: NDArray[np.integer], budget: int) -> list[NDArray[np.integer]]:
    """Cut `order` (sorted by length) into runs whose padded size, count × longest, stays within `budget` tokens."""
    batches: list[NDArray[np.integer]] = []
    start = 0
    while start < len(order):
        # Longest last: the run may grow while (count × length of its last sentence) fits.
        sizes = np.arange(1, len(order) - start + 1) * lengths[order[start:]]
        end = start + max(1, int(np.searchsorted(sizes, budget, side="right")))
        batches.append(order[start:end])
        start = end
    return batches


def _group(store: TokenStore, part: NDArray[np.integer], device: torch.device | str) -> LengthGroup:
    ids, mask = store.pad(part)
    return LengthGroup(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))
