"""Epoch → global batches of triplets. Pure functions of their arguments: a position in training is just a step number."""

# pyright: strict

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class GlobalBatches:
    """The global batches of a run over n triplets.

    Each epoch is a fresh permutation cut into `steps_per_epoch` batches whose sizes differ by at most one, none larger than
    `batch_size`: every triplet is used once an epoch and no batch is a small remainder.

    Args:
        premises: (n,) sentence number of each triplet's premise; equal numbers are the same sentence.
        batch_size: triplets in a global batch, at most.
        seed: of the permutations.
        separate: keep triplets of one premise in different batches, as far as there are batches enough.
    """

    def __init__(self, premises: NDArray[np.int32], batch_size: int, seed: int, *, separate: bool) -> None:
        self.premises, self.seed, self.separate = premises, seed, separate
        self.steps_per_epoch = -(-len(premises) // batch_size)
        self._epoch = lru_cache(maxsize=1)(self._rows_of_epoch)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Row numbers of the global batch of a step, counted over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        small, larger = divmod(len(self.premises), self.steps_per_epoch)
        start = within * small + min(within, larger)
        return self._epoch(epoch)[start : start + small + (within < larger)]

    def same_premise(self, step: int) -> int:
        """Ordered pairs of different rows of a step's batch that share their premise.

        In each, the second row's entailment is entailed by the first row's premise too, and stands among its negatives.
        """
        _, counts = np.unique(self.premises[self.rows(step)], return_counts=True)
        return int((counts * (counts - 1)).sum())

    def _rows_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(len(self.premises))
        if not self.separate:
            return order
        # Like dealing cards: premises in random order, the triplets of one next to each other, go to the batches in turn. So
        # those of one premise meet only where it has more of them than there are batches. `order` sorts out which triplet of a
        # premise comes first.
        _, number = np.unique(self.premises, return_inverse=True)
        place = random.permutation(int(number.max()) + 1)
        order = order[np.argsort(place.take(number).take(order), kind="stable")]
        # The batches that get one triplet more are the first ones: only these may swap places.
        steps = self.steps_per_epoch
        larger = len(order) % steps
        hands: list[NDArray[np.int64]] = [order[k::steps] for k in range(steps)]
        turn: list[int] = [*random.permutation(larger).tolist(), *(larger + random.permutation(steps - larger)).tolist()]
        return np.concatenate([hands[k] for k in turn])
