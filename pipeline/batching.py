"""Epoch → global batches of triplets. Pure functions of their arguments: a position in training is just a step number."""

# pyright: strict

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class GlobalBatches:
    """The global batches of a run over n triplets.

    Each epoch draws n triplets and cuts them into `steps_per_epoch` batches whose sizes differ by at most one, none larger than
    `batch_size`, so that no batch is a small remainder. Without `not_longer_share` a draw is a permutation.

    Args:
        premises: (n,) sentence number of each triplet's premise; equal numbers are the same sentence.
        surplus: (n,) tokens that the premise has more than the entailment.
        batch_size: triplets in a global batch, at most.
        seed: of the draws.
        separate: keep triplets of one premise in different batches, as far as there are batches enough.
        matched: put triplets of nearly the same surplus into one batch; not together with `separate`.
        not_longer_share: share of an epoch drawn from triplets whose surplus is not positive; None for as many as there are.

    Raises:
        ValueError: the share asks for triplets of a kind there are none of.
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
        not_longer_share: float | None = None,
    ) -> None:
        self.premises, self.surplus, self.seed = premises, surplus, seed
        self.separate, self.matched = separate, matched
        self.steps_per_epoch = -(-len(premises) // batch_size)
        self._parts = [np.arange(len(premises))]
        self._drawn = [len(premises)]
        if not_longer_share is not None:
            self._parts = [np.flatnonzero(surplus <= 0), np.flatnonzero(surplus > 0)]
            short = round(not_longer_share * len(premises))
            self._drawn = [short, len(premises) - short]
            for part, number, kind in zip(self._parts, self._drawn, ("not longer", "longer"), strict=True):
                if number and not len(part):
                    raise ValueError(f"there are no triplets whose premise is {kind} than their entailment")
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
        order = random.permutation(_draw(self._parts, self._drawn, random))
        if self.matched:
            # Random within one surplus, since `order` is.
            order = order[np.argsort(self.surplus[order], kind="stable")]
            # Which parts get one triplet more is drawn, or they would always be the same lengths'.
            small, larger = divmod(len(order), self.steps_per_epoch)
            sizes = small + (random.permutation(self.steps_per_epoch) < larger)
            parts: list[NDArray[np.int64]] = np.split(order, np.cumsum(sizes)[:-1])
            turn: list[int] = random.permutation(self.steps_per_epoch).tolist()
            return np.concatenate([parts[k] for k in sorted(turn, key=lambda k: -len(parts[k]))])
        if not self.separate:
            return order
        # Like dealing cards: premises in random order, the triplets of one next to each other, go to the batches in turn. So
        # those of one premise meet only where it has more of them than there are batches. `order` sorts out which triplet of a
        # premise comes first.
        _, number = np.unique(self.premises, return_inverse=True)
        place = random.permutation(int(number.max()) + 1)
        order = order[np.argsort(place.take(number).take(order), kind="stable")]
        hands: list[NDArray[np.int64]] = [order[k :: self.steps_per_epoch] for k in range(self.steps_per_epoch)]
        return np.concatenate([hands[k] for k in self._turns(random)])

    def _turns(self, random: np.random.Generator) -> list[int]:
        """The order of an epoch's batches. Those with one triplet more are the first ones: only these may swap places."""
        steps = self.steps_per_epoch
        larger = len(self.premises) % steps
        return [*random.permutation(larger).tolist(), *(larger + random.permutation(steps - larger)).tolist()]


def _draw(parts: list[NDArray[np.int64]], numbers: list[int], random: np.random.Generator) -> NDArray[np.int64]:
    """So many of each part, each of it as often as any other of it, give or take one."""
    drawn: list[NDArray[np.int64]] = []
    for part, number in zip(parts, numbers, strict=True):
        whole, rest = divmod(number, max(len(part), 1))
        drawn += [*([part] * whole), random.permutation(part)[:rest] if rest else part[:0]]
    return np.concatenate(drawn)
