"""InterSent: operators on embeddings, trained so that their output finds the target and a decoder writes it (2023, section 3).

Shapes: n rows in the global batch (all workers together), n_r of them on this worker, D dimensions, T tokens.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data.schema import OPERATIONS
from pipeline.data.token_sets import OperationSet, read_dev
from pipeline.data.token_store import OPERATION_ROWS, Rows, TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.precision import all_have_bf16
from pipeline.distributed.transfer import to_device
from pipeline.evaluation.encoding import encode_all
from pipeline.families.batch_sampler import EpochBatches, random_order
from pipeline.families.objective import Objective
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.params import IntersentParams
from pipeline.families.operations.scoring import mean_over_operations, reciprocal, target_ranks
from pipeline.families.operations.vector_decoder import VectorDecoder, depth
from pipeline.training.step import MEAN_HEAD
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.params import ModelParams, TrainParams
    from pipeline.families.objective import Batches
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.packing import TokenBlocks

_bf16 = cache(all_have_bf16)


@dataclass(frozen=True, slots=True)
class IntersentObjective(Objective):
    """`intersent`, as section objective of params.yaml asks for it."""

    params: IntersentParams

    def pretrained_heads(self, params: ModelParams) -> tuple[str, ...]:
        """The mean head, if means start as the pooled hidden state: they are already what the operators need."""
        return (MEAN_HEAD,) if params.mean_start == "identity" and params.mean_activation == "none" else ()

    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> OperationBatches:
        return OperationBatches(self, rows, store, train, batch_size, seed)

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> SentenceOperators:
        """Operators and, unless `generation_weight` is 0, a decoder of the token ids that occur in the training targets."""
        assert isinstance(batches, OperationBatches)
        decoder: VectorDecoder | None = None
        if self.params.generation_weight:
            layers, start, end = self.params.decoder_layers, *encoder.sentence_ends
            if layers > (most := depth(encoder.backbone)):
                raise UserError(
                    f"objective.decoder_layers: {layers}, but the backbone has {most} layers that can start a decoder; lower it, "
                    "or set objective.generation_weight to 0, which trains no decoder"
                )
            vocabulary = torch.from_numpy(np.union1d(batches.target_ids(), (start, end)))
            decoder = VectorDecoder(encoder.backbone, layers, encoder.dim, vocabulary, start, end)
        return SentenceOperators(encoder.dim, self.params.operators, decoder)

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        """(m, D) means."""
        return encoder(blocks).mean

    def dev_rows(self, tokens: Path) -> OperationSet:
        return read_dev(tokens, OPERATION_ROWS)

    @torch.inference_mode()
    def dev_score(
        self, encoder: GaussianEncoder, store: TokenStore, rows: OperationSet, modules: nn.Module | None, bf16: bool
    ) -> float:
        """MRR@10 of the operators in the pool with inputs, the mean over operations."""
        assert isinstance(modules, SentenceOperators)
        sentences, value = encode_all(encoder, store, bf16=bf16), 0.0
        if collectives.rank() == 0:
            ranks = target_ranks(sentences.mean, rows, modules.operators)
            finite = bool(torch.isfinite(sentences.mean).all())
            value = 100 * mean_over_operations(reciprocal(ranks), rows.operation) if finite else float("nan")
        return collectives.from_first(value, sentences.mean.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationBatch:
    """This worker's rows of a global batch.

    Attributes:
        everyone: (n, 4) for each row of the global batch: its position in `OPERATIONS`, then the sentence numbers of its first
            input, its second input and its target.
        tokens: (n_r, T) token ids of this worker's targets, and True where there is a token; None without a decoder.
        written: tokens that the whole global batch has to write: all but the first of each target.
        bf16: whether the decoder computes in bf16 if all workers can.
        n: rows of the global batch.
        counted: those that add to the loss: all.
    """

    params: IntersentParams
    everyone: NDArray[np.int32]
    tokens: tuple[Tensor, Tensor] | None
    written: int
    bf16: bool
    n: int
    counted: int

    @property
    def sentences(self) -> list[NDArray[np.int32]]:
        """(n_r,) sentence numbers of first inputs, second inputs and targets."""
        return list(self.everyone[collectives.shard(self.n), 1:].T)

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None) -> Tensor:
        """Σ over this worker's rows of the contrastive loss and n_r's share of the mean loss of a token, ().

        Divided by n, it is contrastive_weight · (mean over the rows) + generation_weight · (mean over the tokens).

        Args:
            encoded: (n_r, D) each: first inputs, second inputs, targets.
        """
        assert isinstance(modules, SentenceOperators)
        operation = self.everyone[collectives.shard(self.n), 0].astype(np.int8)
        output = modules.by_rows(operation, encoded[0], encoded[1])
        total = output.new_zeros(())
        if self.params.contrastive_weight:
            total = self.params.contrastive_weight * self._contrastive(output, encoded)
        if self.tokens is not None:
            assert modules.decoder is not None
            ids, mask = to_device(self.tokens[0], output.device), self.tokens[1]
            bf16 = self.bf16 and _bf16(output.device)
            with torch.autocast(output.device.type, dtype=torch.bfloat16) if bf16 else nullcontext():
                cross_entropy = modules.decoder.loss(output, modules.decoder.places(ids), mask)
            total = total + self.params.generation_weight * self.n / self.written * cross_entropy
        return total

    def _contrastive(self, output: Tensor, encoded: Sequence[Tensor]) -> Tensor:
        """Σ of −log softmax at the row's own target, among the targets of the batch and, with own_inputs, the row's inputs."""
        n, shard = self.n, collectives.shard(self.n)
        output = F.normalize(output)
        logits = output @ F.normalize(collectives.gather_rows(encoded[2], n)).T
        if self.params.own_inputs:
            inputs = torch.stack([F.normalize(part) for part in encoded[:2]], 1)
            logits = torch.cat((logits, (inputs @ output[:, :, None])[..., 0]), 1)
        hidden = to_device(torch.from_numpy(self._no_negatives()[:, : logits.shape[1]]), logits.device)
        logits = (logits / self.params.temperature).masked_fill(hidden, float("-inf"))
        own = torch.arange(shard.start, shard.stop, device=logits.device)
        return F.cross_entropy(logits, own, reduction="sum")

    def _no_negatives(self) -> NDArray[np.bool_]:
        """(n_r, n + 2) the candidates that are not negatives of a row: targets of the batch, then its own two inputs.

        Not wrong is a sentence that is the row's target, the target of a row with the same operation and inputs, or an input that
        the operator does not change. An input may be missing. The row's own target has its column.
        """
        shard = collectives.shard(self.n)
        own = self.everyone[shard]
        kept = [OPERATIONS.index("reconstruction")]
        if self.params.operators == "arithmetic":
            kept.append(OPERATIONS.index("compression"))
        unchanged = np.where(np.isin(own[:, 0], kept), own[:, 1], own[:, 3])
        candidates = np.concatenate((np.broadcast_to(self.everyone[:, 3], (len(own), self.n)), own[:, 1:3]), 1)
        hidden = (candidates == own[:, 3:]) | (candidates == unchanged[:, None]) | (candidates < 0)
        hidden[:, : self.n] |= (own[:, None, :3] == self.everyone[None, :, :3]).all(2)
        rows = np.arange(len(own))
        hidden[rows, shard.start + rows] = False
        return hidden


class OperationBatches(EpochBatches):
    """The global batches of a run over operation rows.

    With `shares`, an epoch has as many rows as there are of the named operations, each operation with its share, spread evenly.
    An operation with fewer rows repeats them, one with more leaves some out, other ones in every epoch. Row numbers are those of
    operations.parquet, and the source of a row is its target.

    Raises:
        UserError: there are fewer rows than the workers need, or none of an operation in `shares`.
    """

    def __init__(
        self, objective: IntersentObjective, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int
    ) -> None:
        self._params, self._store = objective.params, store
        self._bf16 = train.precision == "bf16"
        self._operation = rows.column("operation").astype(np.int8)
        self._sentences = rows.stacked("a", "b", "target")
        shares = self._params.shares
        self._shares = {OPERATIONS.index(name): share for name, share in (shares or {}).items()}
        for operation in self._shares:
            if not (self._operation == operation).any():
                raise UserError(
                    f"objective.shares: names {OPERATIONS[operation]}, and {rows.directory} has no row of it; leave it out, or "
                    "add rows (data.files.operations)"
                )
        used = np.isin(self._operation, list(self._shares)) if shares else np.ones(len(rows), np.bool_)
        self._used = np.flatnonzero(used)
        least = max(2, collectives.world_size())
        if len(self._used) < least:
            raise UserError(f"{rows.directory}: {len(self._used)} operation rows; training needs {least} or more")
        super().__init__(len(self._used), self._sentences[:, 2].__getitem__, batch_size, seed, train.block_rows)

    def target_ids(self) -> NDArray[np.int64]:
        """(tokens,) the token ids of all targets that are trained on."""
        numbers = np.unique(self._sentences[self._used, 2])
        return self._store.lay_out(numbers, self._store.lengths_of(numbers))[0]

    def sentences(self, step: int) -> NDArray[np.int32]:
        """(3 n,) the sentences of a step's global batch."""
        return self._sentences[self.rows(step)].ravel()

    def batch(self, step: int) -> OperationBatch:
        """This worker's share of a step's global batch."""
        rows = self.rows(step)
        own = rows[collectives.shard(len(rows))]
        tokens: tuple[Tensor, Tensor] | None = None
        if self._params.generation_weight:
            numbers = self._sentences[own, 2]
            widths = np.full(len(own), self._store.lengths_of(numbers).max())
            ids, mask = self._store.lay_out(numbers, widths)
            tokens = torch.from_numpy(ids).view(len(own), -1), torch.from_numpy(mask).view(len(own), -1)
        return OperationBatch(
            params=self._params,
            everyone=np.column_stack((self._operation[rows].astype(np.int32), self._sentences[rows])),
            tokens=tokens,
            written=int((self._store.lengths_of(self._sentences[rows, 2]) - 1).sum()),
            bf16=self._bf16,
            n=len(rows),
            counted=len(rows),
        )

    def _rows_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        if not self._shares:
            return self._used[random_order(len(self), self._block, random)[:]]
        # The largest remainders get the rows that rounding down leaves.
        exact = np.array(list(self._shares.values())) / sum(self._shares.values()) * len(self)
        counts = exact.astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: len(self) - counts.sum()]] += 1
        drawn: list[NDArray[np.int64]] = []
        places: list[NDArray[np.float64]] = []
        for operation, count in zip(self._shares, counts.tolist(), strict=True):
            own = np.flatnonzero(self._operation == operation)
            passes = [own[random_order(len(own), self._block, random)[:]] for _ in range(-(-count // len(own)))]
            drawn.append(np.concatenate([own[:0], *passes])[:count])
            places.append((np.arange(count) + random.random(count)) / max(count, 1))
        return np.concatenate(drawn)[np.argsort(np.concatenate(places), kind="stable")]
