"""What the contrastive objectives over triplets share: their rows, their batches, and how sentences are represented.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, m sentences to encode, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data.token_sets import PairSet, read_dev
from pipeline.data.token_store import ROW_KINDS, TRIPLETS, Rows, TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.families.batch_sampler import GlobalBatches
from pipeline.families.candidates import Hidden, Role, columns, holds_back, same_sentence, stacked
from pipeline.families.pairs.params import ContrastiveParams
from pipeline.gaussian.distribution import Gaussian
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.params import ModelParams, SamePremise, TrainParams
    from pipeline.families.objective import Batches
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.packing import TokenBlocks


class TripletObjective(ABC):
    """An objective over triplets whose loss compares each premise with candidates from the whole global batch."""

    __slots__ = ()

    reduction: Literal["mean", "sum"]

    @property
    @abstractmethod
    def roles(self) -> tuple[Role, ...]:
        """The role of each sentence of a row in the loss."""

    @abstractmethod
    def loss(
        self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None = None
    ) -> Tensor:
        """Σ over this worker's rows of the row loss of Eq. 4, ().

        Args:
            roles: one Gaussian (n_r, D) for each role; rows that are not present may hold any finite values.
            present: (n_r,) bool for each role.
            n: rows of the global batch.
            hidden: the columns that are not candidates of a row. The diagonal of R is true for pairs known to hold both ways.
            modules: what `modules` returned.
        """

    @abstractmethod
    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(...,) score of "the premise entails the hypothesis"; higher means more entailed."""

    @property
    def row_kind(self) -> str:
        return TRIPLETS

    @property
    def score_name(self) -> str:
        return ContrastiveParams.score_name

    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> TripletBatches:
        return TripletBatches(self, rows, store, train, batch_size, seed)

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> nn.Module | None:
        return None

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        """(m, 2, D) mean and log-variance."""
        return stacked(encoder(blocks))

    def dev_rows(self, tokens: Path) -> PairSet:
        return read_dev(tokens, self.row_kind)

    def pretrained_heads(self, params: ModelParams) -> tuple[str, ...]:
        return ()

    def dev_score(
        self, encoder: GaussianEncoder, store: TokenStore, rows: PairSet, *, modules: nn.Module | None = None, bf16: bool = False
    ) -> float:
        """PR-AUC of `score` on the development pairs."""
        from pipeline.families.pairs.scoring import dev_pr_auc

        return dev_pr_auc(encoder, self.score, store, rows, bf16=bf16)


@dataclass(frozen=True, slots=True, kw_only=True)
class TripletBatch:
    """This worker's triplets of a global batch.

    Attributes:
        sentences: (n_r,) sentence numbers for each of the objective's roles.
        n: number of triplets in the global batch.
        hidden: columns that a row must ignore.
    """

    objective: TripletObjective
    sentences: list[NDArray[np.int32]]
    n: int
    hidden: Hidden

    @property
    def counted(self) -> int:
        return self.n

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None = None) -> Tensor:
        """The objective's loss; encoded: (n_r, 2, D) for each role."""
        device = encoded[0].device
        roles = [Gaussian(part[:, 0], part[:, 1]) for part in encoded]
        present = [to_device(numbers >= 0, device) for numbers in self.sentences]
        hidden: Hidden = {block: to_device(mask, device) for block, mask in self.hidden.items()}
        return self.objective.loss(roles, present, self.n, hidden, modules)


def triplet_batch(
    objective: TripletObjective, triplets: NDArray[np.int32], how: SamePremise, two_way: NDArray[np.bool_] | None = None
) -> TripletBatch:
    """This worker's share of a global batch of (n, 4) triplets; `how` is the parameter train.same_premise.

    Args:
        two_way: (n,) whether each entailment is known to hold both ways; None if none is.
    """
    shard = collectives.shard(len(triplets))
    pairs = torch.from_numpy(triplets[:, :2].copy())
    hidden: dict[Literal["E", "R"], Tensor] = {}
    if how == "mask":
        hidden["E"] = same_sentence(pairs[shard, 0], pairs[:, 0], shard.start)
    if two_way is not None and two_way[shard].any():
        hidden["R"] = holds_back(torch.from_numpy(two_way[shard]), pairs[shard], pairs[:, 0])
    return TripletBatch(objective=objective, sentences=columns(triplets[shard], objective.roles), n=len(triplets), hidden=hidden)


def training_triplets(rows: Rows, which: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(n, 4) sentence numbers and (n,) their rows in triplets.parquet; `which` is the parameter train.triplets."""
    triplets = rows.stacked(*ROW_KINDS[TRIPLETS])
    kept = np.flatnonzero(triplets[:, 2] >= 0) if which == "with-contradiction" else np.arange(len(triplets))
    return triplets[kept], kept


class TripletBatches:
    """The global batches of a run over triplets, as section train of params.yaml asks for them.

    Raises:
        UserError: there are too few triplets, or none with a neutral pair where the objective needs one.
    """

    def __init__(
        self, objective: TripletObjective, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int
    ) -> None:
        self._objective = objective
        self._how: SamePremise = train.same_premise
        self._triplets, self._original_rows = training_triplets(rows, train.triplets)
        # Stores of earlier versions do not have the column.
        self._two_way = rows.columns.get("two_way", np.zeros(len(rows), np.int8))[self._original_rows] == 1
        workers = collectives.world_size()
        if len(self._triplets) < max(2, workers):
            which = " with a contradiction (train.triplets: all uses the others too)"
            raise UserError(
                f"{rows.directory}: {len(self._triplets)} triplets{which if train.triplets != 'all' else ''}; "
                f"training on {workers} workers needs more"
            )
        if "neutral" in objective.roles and not (self._triplets[:, 3] >= 0).any():
            raise UserError(f"{rows.directory}: no triplet has a neutral pair; set objective.neutral_block: false (params.yaml)")
        tokens = store.length
        self._global = GlobalBatches(
            self._triplets[:, 0],
            tokens[self._triplets[:, 0]] - tokens[self._triplets[:, 1]],
            batch_size,
            seed,
            separate=train.same_premise == "separate",
            matched=train.batch_lengths == "matched",
        )

    @property
    def steps_per_epoch(self) -> int:
        return self._global.steps_per_epoch

    def __len__(self) -> int:
        return len(self._triplets)

    def rows(self, step: int) -> NDArray[np.int64]:
        """(n,) row numbers of a step's global batch, as in triplets.parquet."""
        return self._original_rows[self._global.rows(step)]

    def batch(self, step: int) -> TripletBatch:
        """This worker's share of a step's global batch."""
        rows = self._global.rows(step)
        return triplet_batch(self._objective, self._triplets[rows], self._how, self._two_way[rows])

    def same_source(self, step: int) -> int:
        """Number of ordered pairs of different rows in a step's batch that have the same premise."""
        return self._global.same_premise(step)
