"""The interface of an objective. The training loop knows nothing else about the objective it runs.

An objective gathers rows into batches (`batches`), says how sentences are represented (`represent`), may bring modules of its own
(`modules`), and scores an encoder on the development set (`dev_score`). Its parameters name the kind of its rows and its score.

Shapes: n rows in the global batch (all workers together), n_r of them on this worker, m sentences to encode, D dimensions.
"""

# pyright: strict

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.gaussian.distribution import Gaussian, SimilarityKind

if TYPE_CHECKING:
    from pipeline.config.params import ModelParams, TrainParams
    from pipeline.data.token_store import Rows, TokenStore
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.packing import TokenBlocks


class Batch(Protocol):
    """This worker's share of a global batch: the sentences to encode, and the loss over them."""

    @property
    def n(self) -> int:
        """Rows of the global batch; this worker has the n_r rows `collectives.shard(n)`."""
        ...

    @property
    def counted(self) -> int:
        """Rows of the global batch that add to the loss; its mean is over these."""
        ...

    @property
    def sentences(self) -> Sequence[NDArray[np.int32]]:
        """Sentence numbers to encode: one array (n_r,) for each part of a row; `MISSING` where a row has no such sentence."""
        ...

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None) -> Tensor:
        """Σ of the row losses over this worker's rows, ().

        Args:
            encoded: (n_r, ...) for each array of `sentences`, from `Objective.represent`; 0 for a missing sentence.
            modules: what `Objective.modules` returned.
        """
        ...


class Batches(Protocol):
    """The global batches of a run. A step number fully describes the position in training; steps are counted over all epochs."""

    @property
    def steps_per_epoch(self) -> int: ...

    def __len__(self) -> int:
        """Number of rows that are trained on."""
        ...

    def rows(self, step: int) -> NDArray[np.integer[Any]]:
        """(n,) row numbers of a step's global batch, as in KIND.parquet."""
        ...

    def batch(self, step: int) -> Batch:
        """This worker's share of a step's global batch."""
        ...

    def sentences(self, step: int) -> NDArray[np.int32]:
        """(m,) the sentences of which `batch` and the encoder read tokens, or `MISSING`. It reads none, and is called from
        another thread."""
        ...

    def same_source(self, step: int) -> int:
        """Number of ordered pairs of different rows in a step's batch that share a premise, so the positive of one is true of
        the other, too; or that are sentences of the same document."""
        ...


@dataclass(frozen=True, slots=True)
class Objective(ABC):
    """A training objective: its batches, representations, modules, loss and development score."""

    params: Any
    """Section objective of params.yaml, by its own type."""

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """How the losses of the rows of a global batch become one number."""
        return self.params.reduction

    @property
    def similarity(self) -> SimilarityKind | None:
        """The Gaussian similarity that decides the direction of a pair; None if the loss does not train the variances."""
        return self.params.gaussian_similarity

    def pretrained_heads(self, params: ModelParams) -> tuple[str, ...]:
        """Prefixes of the encoder's heads that start as what the objective needs, and so learn at the backbone's rate."""
        return ()

    @abstractmethod
    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> Batches:
        """The global batches of a run over the training rows.

        Raises:
            UserError: there are fewer rows than the workers need, or the rows lack what the objective needs.
        """

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> nn.Module | None:
        """Modules of the objective's own, new, on the CPU; None if it has none.

        Args:
            batches: what `batches` returned.

        The trainer seeds the random numbers for them, trains their parameters with the encoder's (at the rate of the heads), sums
        their gradients over the workers, keeps them in checkpoints, and writes them next to the best encoder. `represent` and the
        loss may use them. They must not contain parameters of the encoder itself, or buffers that training changes (BatchNorm):
        only gradients are shared among the workers.
        """
        return None

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        """(m, ...) what the loss needs of each sentence; by default mean and log-variance, (m, 2, D).

        Called once for each micro-batch, and again for its gradient. On several workers it must use every trained parameter of
        the encoder, or DDP fails at the second step.
        """
        return encoder(blocks).stacked()

    @abstractmethod
    def dev_rows(self, tokens: Path) -> Any:
        """What the development score is computed on, read from the development token store.

        Raises:
            UserError: the store does not have it.
        """

    @abstractmethod
    def dev_score(self, encoder: GaussianEncoder, store: TokenStore, rows: Any, modules: nn.Module | None, bf16: bool) -> float:
        """The quality of an encoder, by which a model is chosen; higher is better; the same number on every worker.

        Args:
            store: the development store, or one of the sentences of `rows` alone.
            rows: what `dev_rows` read.
            modules: what `modules` returned.

        Returns:
            percent; NaN if an embedding or a score is not finite.
        """

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(...,) score of "the premise entails the hypothesis"; higher means more entailed.

        The cosine of the means, unless an objective has another one.
        """
        return F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)
