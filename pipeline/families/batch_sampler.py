"""Epochs and global batches, as pure functions: a step number fully describes the position in training."""

# pyright: strict

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def cut(step: int, steps_per_epoch: int, rows: int) -> tuple[int, slice]:
    """The epoch of a step, and the part of the epoch's rows that is its batch. The sizes of the batches differ by at most one.

    Args:
        step: counted over all epochs.
        rows: rows of an epoch.
    """
    epoch, within = divmod(step, steps_per_epoch)
    small, larger = divmod(rows, steps_per_epoch)
    start = within * small + min(within, larger)
    return epoch, slice(start, start + small + (within < larger))


class GlobalBatches:
    """The global batches of a run over n triplets.

    Each epoch is a permutation of the triplets, cut into `steps_per_epoch` batches whose sizes differ by at most one, none larger
    than `batch_size`, so no batch is a small remainder.

    Args:
        premises: (n,) sentence number of each triplet's premise; equal numbers mean the same sentence.
        surplus: (n,) tokens of the premise minus tokens of the entailment.
        batch_size: maximum number of triplets in a global batch.
        seed: seed of the draws.
        separate: put triplets with the same premise into different batches, as far as there are enough batches.
        matched: put triplets with nearly equal surplus into one batch; cannot be combined with `separate`.
    """

    def __init__(
        self,
        premises: NDArray[np.int32],
        surplus: NDArray[np.integer],
        batch_size: int,
        seed: int,
        *,
        separate: bool = False,
        matched: bool = False,
    ) -> None:
        self.premises, self.surplus, self.seed = premises, surplus, seed
        self.separate, self.matched = separate, matched
        self.steps_per_epoch = -(-len(premises) // batch_size)
        self._epoch = lru_cache(maxsize=1)(self._rows_of_epoch)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Row numbers of the global batch of a step; steps are counted over all epochs."""
        epoch, part = cut(step, self.steps_per_epoch, len(self.premises))
        return self._epoch(epoch)[part]

    def same_premise(self, step: int) -> int:
        """Number of ordered pairs of different rows in a step's batch that have the same premise.

        In each pair, the first row's premise also entails the second row's entailment, which is among its negatives.
        """
        _, counts = np.unique(self.premises[self.rows(step)], return_counts=True)
        return int((counts * (counts - 1)).sum())

    def _rows_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(len(self.premises))
        if self.matched:
            # The order within one surplus is random, because `order` is random.
            order = order[np.argsort(self.surplus[order], kind="stable")]
            # Draw which parts get one triplet more; otherwise it would always be parts with the same surpluses.
            small, larger = divmod(len(order), self.steps_per_epoch)
            sizes = small + (random.permutation(self.steps_per_epoch) < larger)
            parts: list[NDArray[np.int64]] = np.split(order, np.cumsum(sizes)[:-1])
            turn: list[int] = random.permutation(self.steps_per_epoch).tolist()
            return np.concatenate([parts[k] for k in sorted(turn, key=lambda k: -len(parts[k]))])
        if not self.separate:
            return order
        # Deal the triplets like cards: premises in random order, triplets of the same premise next to each other, one to each
        # batch in turn. Triplets of one premise then share a batch only if there are more of them than batches. `order` decides
        # which triplet of a premise comes first.
        _, number = np.unique(self.premises, return_inverse=True)
        place = random.permutation(int(number.max()) + 1)
        order = order[np.argsort(place.take(number).take(order), kind="stable")]
        hands: list[NDArray[np.int64]] = [order[k :: self.steps_per_epoch] for k in range(self.steps_per_epoch)]
        return np.concatenate([hands[k] for k in self._turns(random)])

    def _turns(self, random: np.random.Generator) -> list[int]:
        """A random order of an epoch's batches. Batches with one triplet more come first, so each kind is shuffled separately."""
        steps = self.steps_per_epoch
        larger = len(self.premises) % steps
        return [*random.permutation(larger).tolist(), *(larger + random.permutation(steps - larger)).tolist()]
