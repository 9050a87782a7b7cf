"""The rows of a step: a step number, counted over all epochs, fully describes the position in training."""

# pyright: strict

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.integer[Any]]
Source = Callable[[Numbers], Numbers]
WINDOW = 8
"""Blocks whose rows are mixed (`BlockOrder`)."""


class BlockOrder:
    """A random order of the numbers below `length` (1 or more), in which consecutive numbers come from few places.

    The blocks of consecutive numbers are put in random order, and the numbers of every `WINDOW` blocks are mixed. Only the
    windows that were asked for last are in memory.

    Args:
        block: numbers in a block.
        random: one number is drawn from it.
    """

    def __init__(self, length: int, block: int, random: np.random.Generator) -> None:
        self._length, self._block = length, block
        self._seed = int(random.integers(2**63))
        self._blocks = np.random.default_rng([self._seed, 0]).permutation(-(-length // block))
        sizes = np.minimum(block, length - self._blocks * block)
        self._starts = np.cumsum([0, *np.add.reduceat(sizes, np.arange(0, len(sizes), WINDOW))])
        # A batch may be cut across two windows.
        self._window = lru_cache(maxsize=2)(self._mixed)

    def __getitem__(self, part: slice) -> Numbers:
        """The numbers at these places of the order."""
        start, stop, _ = part.indices(self._length)
        first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
        places = ((k, int(self._starts[k])) for k in range(int(first), int(last) + 1))
        return np.concatenate([self._window(k)[max(start - place, 0) : stop - place] for k, place in places])

    def _mixed(self, k: int) -> Numbers:
        starts: list[int] = (self._blocks[k * WINDOW : (k + 1) * WINDOW] * self._block).tolist()
        numbers: Numbers = np.concatenate([np.arange(start, min(start + self._block, self._length)) for start in starts])
        np.random.default_rng([self._seed, 1 + k]).shuffle(numbers)
        return numbers


def random_order(length: int, block: int | None, random: np.random.Generator) -> Numbers | BlockOrder:
    """The numbers below `length` in the order of `random.permutation(length)`, or with a block by a `BlockOrder`."""
    if block is not None and length:
        return BlockOrder(length, block, random)
    # In half of the memory of `permutation`.
    order = np.arange(length, dtype=np.uint32)
    random.shuffle(order)
    return order


class EpochBatches(ABC):
    """The global batches of a run, whose rows have an order that is drawn for each epoch.

    An epoch is cut into `steps_per_epoch` batches whose sizes differ by at most one, none larger than `batch_size`.
    So no batch is a small remainder.

    Args:
        length: rows of an epoch.
        source: gives what each of some rows of the file is of: rows with equal numbers are of the same source.
        batch_size: maximum number of rows in a global batch.
        seed: seed of the draws.
        block_rows: the parameter train.block_rows.
    """

    def __init__(self, length: int, source: Source, batch_size: int, seed: int, block_rows: int | None = None) -> None:
        self._length, self._source, self._seed, self._block = length, source, seed, block_rows
        self.steps_per_epoch = -(-length // batch_size)
        self._epoch = lru_cache(maxsize=1)(self._rows_of_epoch)

    @abstractmethod
    def _rows_of_epoch(self, epoch: int) -> Numbers | BlockOrder:
        """(length,) row numbers of the file, in the order of the epoch."""

    def __len__(self) -> int:
        return self._length

    def rows(self, step: int) -> Numbers:
        """(n,) row numbers of a step's global batch; steps are counted over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        small, larger = divmod(self._length, self.steps_per_epoch)
        start = within * small + min(within, larger)
        return self._epoch(epoch)[start : start + small + (within < larger)]

    def same_source(self, step: int) -> int:
        """Number of ordered pairs of different rows in a step's batch that are of the same source."""
        _, counts = np.unique(self._source(self.rows(step)), return_counts=True)
        return int((counts * (counts - 1)).sum())
