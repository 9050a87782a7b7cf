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


class EpochBatches(ABC):
    """The global batches of a run, whose rows have an order that is drawn for each epoch.

    An epoch is cut into `steps_per_epoch` batches whose sizes differ by at most one, none larger than `batch_size`.
    So no batch is a small remainder.

    Args:
        length: rows of an epoch.
        source: gives what each of some rows of the file is of: rows with equal numbers are of the same source.
        batch_size: maximum number of rows in a global batch.
        seed: seed of the draws.
    """

    def __init__(self, length: int, source: Source, batch_size: int, seed: int) -> None:
        self._length, self._source, self._seed = length, source, seed
        self.steps_per_epoch = -(-length // batch_size)
        self._epoch = lru_cache(maxsize=1)(self._rows_of_epoch)

    @abstractmethod
    def _rows_of_epoch(self, epoch: int) -> Numbers:
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
