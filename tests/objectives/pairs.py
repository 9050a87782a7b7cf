"""An objective of the tests' own: rows, batches, representation, modules, loss and development score unlike those of the product.

Its rows are pairs of sentences. Each first sentence has to find its second one among those of the whole global batch, by the
product of adapted means. There is one learned scale for even steps and one for odd steps, as if a batch held one of two tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.config.params import TrainParams
from pipeline.data.token_store import Rows, TokenStore, read_rows
from pipeline.distributed import collectives
from pipeline.evaluation.encoding import encode_all
from pipeline.families.batch_sampler import EpochBatches
from pipeline.families.objective import Objective
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import TokenBlocks

KIND = "pairs"
COLUMNS = {"first": False, "second": False}
SCORE = "dev_mrr"


class Own(nn.Module):
    """A linear adapter with dropout, used to represent a sentence, and two scales, used in the loss."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.adapter = nn.Sequential(nn.Dropout(0.1), nn.Linear(dim, dim))
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(())), nn.Parameter(torch.rand(()))])


@dataclass(frozen=True, slots=True)
class PairBatch:
    sentences: list[NDArray[np.int32]]
    n: int
    turn: int

    @property
    def counted(self) -> int:
        return self.n

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None) -> Tensor:
        assert isinstance(modules, Own)
        first, second = encoded
        own = collectives.shard(self.n)
        logits = modules.scales[self.turn].exp() * first @ collectives.gather_rows(second, self.n).T
        return F.cross_entropy(logits, torch.arange(own.start, own.stop), reduction="sum")


class PairBatches(EpochBatches):
    def __init__(self, rows: Rows, batch_size: int, seed: int) -> None:
        super().__init__(len(rows), lambda rows: rows, batch_size, seed)
        self._pairs = rows.stacked(*COLUMNS)

    def _rows_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self))

    def sentences(self, step: int) -> NDArray[np.int32]:
        return self._pairs[self.rows(step)].ravel()

    def batch(self, step: int) -> PairBatch:
        pairs = self._pairs[self.rows(step)]
        return PairBatch(list(pairs[collectives.shard(len(pairs))].T), len(pairs), step % 2)


class PairsObjective(Objective):
    def __init__(self) -> None:
        super().__init__(SimpleNamespace(reduction="mean", gaussian_similarity=None))

    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> PairBatches:
        return PairBatches(rows, batch_size, seed)

    def modules(self, encoder: GaussianEncoder, batches: object) -> nn.Module:
        return Own(encoder.dim)

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        assert isinstance(modules, Own)
        return modules.adapter(encoder(blocks).mean)

    def dev_rows(self, tokens: Path) -> Rows:
        return read_rows(tokens, KIND)

    def dev_score(self, encoder: GaussianEncoder, store: TokenStore, rows: Any, modules: nn.Module | None, bf16: bool) -> float:
        return dev_mrr(encoder, store, rows, modules, bf16=bf16)


@torch.inference_mode()
def dev_mrr(encoder: GaussianEncoder, store: TokenStore, rows: Any, modules: nn.Module | None, *, bf16: bool) -> float:
    """100 times the mean of 1 / the rank of the second sentence among all second sentences."""
    assert isinstance(modules, Own)
    assert not modules.training
    adapted = modules.adapter(encode_all(encoder, store, bf16=bf16).mean)
    first, second = (torch.from_numpy(rows.column(name).copy()) for name in COLUMNS)
    products = adapted[first] @ adapted[second].T
    rank = (products > products.diagonal()[:, None]).sum(1) + 1
    return collectives.from_first(float(100 * (1 / rank).mean()), adapted.device)
