"""Rows and batches of triplets, and the candidates that a row must ignore.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data.token_store import ROW_KINDS, TRIPLETS, Rows, TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.families.batch_sampler import BlockOrder, EpochBatches, Numbers, random_order
from pipeline.families.pairs.params import COLUMNS
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.token_head import DIM
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.params import SamePremise, TrainParams
    from pipeline.families.pairs.contrastive import TripletObjective


Hidden = Mapping[Literal["E", "R"], Tensor]
"""Block → (n_r, n) bool, the columns that are not candidates of a row; a block without an entry has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripletBatch:
    """This worker's triplets of a global batch.

    Attributes:
        sentences: (n_r,) sentence numbers for each of the objective's roles.
        n: number of triplets in the global batch.
        hidden: columns that a row must ignore.
        longest: no sentence has more tokens; None if that is not known.
    """

    objective: TripletObjective
    sentences: list[NDArray[np.int32]]
    n: int
    hidden: Hidden
    longest: int | None = None

    @property
    def counted(self) -> int:
        return self.n

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None = None) -> Tensor:
        """The objective's loss; encoded: (n_r, 2, D) for each role, or with token vectors (`GaussianObjective.represent`)."""
        device = encoded[0].device
        roles = [Gaussian(part[:, 0], part[:, 1], tokens=self._tokens(part[:, 2:].flatten(1))) for part in encoded]
        present = [to_device(numbers >= 0, device) for numbers in self.sentences]
        hidden: Hidden = {block: to_device(mask, device) for block, mask in self.hidden.items()}
        return self.objective.loss(roles, present, self.n, hidden, modules)

    def _tokens(self, numbers: Tensor) -> TokenVectors | None:
        return TokenVectors.of_numbers(numbers, DIM, self.longest) if numbers.shape[1] else None


def triplet_batch(
    objective: TripletObjective,
    triplets: NDArray[np.int32],
    how: SamePremise,
    two_way: NDArray[np.bool_] | None = None,
    longest: int | None = None,
) -> TripletBatch:
    """This worker's share of a global batch of (n, 4) triplets; `how` is the parameter train.same_premise.

    Args:
        two_way: (n,) whether each entailment is known to hold both ways; None if none is.
        longest: as in `TripletBatch`.
    """
    shard = collectives.shard(len(triplets))
    pairs = torch.from_numpy(triplets[:, :2].copy())
    hidden: dict[Literal["E", "R"], Tensor] = {}
    if how == "mask":
        hidden["E"] = same_sentence(pairs[shard, 0], pairs[:, 0], shard.start)
    if two_way is not None and two_way[shard].any():
        hidden["R"] = holds_back(torch.from_numpy(two_way[shard]), pairs[shard], pairs[:, 0])
    sentences = [triplets[shard, COLUMNS.index(role)] for role in objective.params.roles]
    return TripletBatch(objective=objective, sentences=sentences, n=len(triplets), hidden=hidden, longest=longest)


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


class GlobalBatches(EpochBatches):
    """The global batches of a run over n triplets, each epoch in a random order."""

    def _rows_of_epoch(self, epoch: int) -> Numbers | BlockOrder:
        return random_order(len(self), self._block, np.random.default_rng([self._seed, epoch]))


class TripletBatches(GlobalBatches):
    """The global batches of a run over triplets, as section train of params.yaml asks for them.

    Row numbers are those of triplets.parquet. The source of a row is its premise. If two rows of a batch have the same one, the
    entailment of each is among the negatives of the other, although it is entailed.

    Raises:
        UserError: there are too few triplets, or none with a neutral pair where the objective needs one.
    """

    def __init__(
        self, objective: TripletObjective, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int
    ) -> None:
        self._objective = objective
        self._how: SamePremise = train.same_premise
        # The rows stay in the mapped file, since 10⁸ of them in the memory of each worker are too many.
        self._rows, self._store = rows, store
        kinds = list(zip(rows.pieces["contradiction"], rows.pieces["neutral"], strict=True))
        all_of_them = train.triplets == "all"
        has = np.concatenate([(contradiction >= 0) | all_of_them for contradiction, _ in kinds])
        # None: all of them.
        self._used = None if has.all() else np.flatnonzero(has).astype(np.uint32)
        number, workers = int(has.sum()), collectives.world_size()
        if number < max(2, workers):
            which = "" if all_of_them else " with a contradiction (train.triplets: all uses the others too)"
            raise UserError(f"{rows.directory}: {number} triplets{which}; training on {workers} workers needs more")
        neutral = any(((neutral >= 0) & ((contradiction >= 0) | all_of_them)).any() for contradiction, neutral in kinds)
        if "neutral" in objective.params.roles and not neutral:
            raise UserError(f"{rows.directory}: no triplet has a neutral pair; set objective.neutral_block: false (params.yaml)")
        super().__init__(number, lambda rows: self._rows.at(rows, "premise")[:, 0], batch_size, seed, train.block_rows)

    def rows(self, step: int) -> Numbers:
        """(n,) row numbers of a step's global batch."""
        rows = super().rows(step)
        return rows if self._used is None else self._used[rows]

    def sentences(self, step: int) -> NDArray[np.int32]:
        """(4 n,) the sentences of a step's global batch."""
        return self._rows.at(self.rows(step), *ROW_KINDS[TRIPLETS]).ravel()

    def batch(self, step: int) -> TripletBatch:
        """This worker's share of a step's global batch."""
        rows = self.rows(step)
        triplets = self._rows.at(rows, *ROW_KINDS[TRIPLETS])
        # Stores of earlier versions do not have the column.
        two_way = self._rows.at(rows, "two_way")[:, 0] == 1 if "two_way" in self._rows.pieces else None
        longest = int(self._store.lengths_of(triplets[triplets >= 0]).max())
        return triplet_batch(self._objective, triplets, self._how, two_way, longest)
