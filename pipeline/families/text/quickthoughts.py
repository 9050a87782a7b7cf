"""QuickThoughts: predict the sentences around a sentence of running text (Logeswaran and Lee 2018), or the next block of them.

Two encoders f and g: P(c | s) = exp f(s)ᵀg(c) / Σ exp f(s)ᵀg(c'). They are the two halves of the dimensions of one Gaussian
encoder (`model.towers` says whether they share a backbone), so the model in use is the concatenation of both, as in the sources.
The block loss is that of CURL (Arora et al. 2019): scores are compared as means over blocks of consecutive sentences.

Shapes: n sentences in the global batch (all workers together), n_r of them on this worker, D dimensions of f and of g, u units. A
unit is what a sentence is compared with: another sentence, or a block of b consecutive ones.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data.token_sets import TextSet, read_dev
from pipeline.data.token_store import DOCUMENTS, Rows, TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.evaluation.encoding import encode_all
from pipeline.families.batch_sampler import EpochBatches, random_order
from pipeline.families.objective import Objective
from pipeline.families.text.params import QuickThoughtsParams
from pipeline.gaussian.distribution import Gaussian, pairwise_similarity
from pipeline.gaussian.distribution import similarity as paired_similarity
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.params import TrainParams
    from pipeline.families.objective import Batches
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.packing import TokenBlocks

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Units:
    """The sentences of a batch and what they are compared with. A place is (group, index); neighbours differ by 1 in the index.

    Attributes:
        own: (n, 2) place of each sentence; the unit with the same place is not a candidate. −1: none.
        places: (u, 2) place of each unit.
        members: (u, b) numbers, within the batch, of the sentences of each unit.
        window: units up to this far from a sentence's own place are its targets.
        both: whether units before it are targets, too.
    """

    own: Places
    places: Places
    members: Places
    window: int
    both: bool

    def targets(self, rows: slice) -> tuple[Tensor, Tensor]:
        """(rows, u) bool each: the targets of some sentences, and the units that are not candidates."""
        own, places = torch.from_numpy(self.own[rows]), torch.from_numpy(self.places)
        same = own[:, :1] == places[None, :, 0]
        distance = places[None, :, 1] - own[:, 1:]
        near = (distance.abs() if self.both else distance).le(self.window) & (distance != 0 if self.both else distance > 0)
        return same & near, same & (distance == 0)

    def with_targets(self) -> int:
        """How many of the n sentences have a target. The sentences with a place are those of the units."""
        group, index = self.places[np.lexsort((self.places[:, 1], self.places[:, 0]))].T
        near = (np.diff(group) == 0) & (np.diff(index) <= self.window)
        targets = np.append(near, False)
        if self.both:
            targets |= np.append(False, near)
        return int(targets[: len(group)].sum()) * self.members.shape[1]


def sentences_as_units(document: Places, position: Places, window: int, *, both: bool) -> Units:
    """Each sentence is a unit; targets are the sentences of the document within `window` positions.

    Args:
        document: (n,) number of each sentence's document.
        position: (n,) its position in the document.
    """
    places = np.stack((document, position), 1)
    return Units(places, places, np.arange(len(document))[:, None], window, both)


def blocks_as_units(document: Places, position: Places, size: int, *, both: bool) -> Units:
    """Consecutive sentences are cut into blocks of `size`; the target is the block next to the sentence's own.

    Sentences at the end of a run that fill no block are in no unit and have no target.
    """
    follows = (np.diff(document) == 0) & (np.diff(position) == 1)
    run = np.cumsum(np.concatenate(([0], ~follows)))[: len(document)]
    starts = np.flatnonzero(np.diff(run, prepend=-1))
    lengths = np.diff(np.append(starts, len(run)))
    within = np.arange(len(run)) - starts[run]
    in_block = within < lengths[run] // size * size
    own = np.where(in_block[:, None], np.stack((run, within // size), 1), -1)
    members = np.flatnonzero(in_block).reshape(-1, size)
    return Units(own, own[members[:, 0]], members, 1, both)


@dataclass(frozen=True, slots=True)
class QuickThoughtsObjective(Objective):
    """`quickthoughts`, as section objective of params.yaml asks for it."""

    params: QuickThoughtsParams

    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> DocumentBatches:
        return DocumentBatches(self, rows, batch_size, seed, train.block_rows)

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> None:
        """None; refuses an identity start in which f and g would be different parts of the hidden state."""
        twice = 2 * encoder.mean_head.in_features
        if encoder.params.mean_start == "identity" and encoder.dim % twice:
            raise UserError(
                f"model.dim: {encoder.dim}, but with model.mean_start: identity the objective quickthoughts needs a multiple of "
                f"{twice} (twice the hidden size), so that f and g start the same"
            )

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        """(m, 2, 2 D) mean and log-variance; f is the first half of the dimensions, g the second."""
        return encoder(blocks).stacked()

    def dev_rows(self, tokens: Path) -> TextSet:
        return read_dev(tokens, DOCUMENTS)

    @torch.inference_mode()
    def dev_score(
        self, encoder: GaussianEncoder, store: TokenStore, rows: TextSet, modules: nn.Module | None, bf16: bool
    ) -> float:
        """How often the objective finds the next sentence among 64."""
        from pipeline.families.text.scoring import next_right

        sentences, value = encode_all(encoder, store, bf16=bf16), 0.0
        if collectives.rank() == 0:
            finite = bool(torch.isfinite(sentences.mean).all() and torch.isfinite(sentences.log_var).all())
            value = 100 * float(next_right(sentences, rows, self.following).mean()) if finite else float("nan")
        return collectives.from_first(value, sentences.mean.device)

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(...,) similarity of two sentences in use, over all dimensions: the cosine of the means, or sim(h‖p)."""
        if self.similarity is None:
            return Objective.score(self, premise, hypothesis)
        return paired_similarity(hypothesis, premise, "kl")

    def following(self, sentences: Gaussian, candidates: Gaussian) -> Tensor:
        """(a, c) score of each candidate, by g, as the context of each sentence, by f. Not divided by the temperature.

        Args:
            sentences: (a, 2 D).
            candidates: (c, 2 D).
        """
        return self._scores(_halves(sentences)[0], _halves(candidates)[1])

    def units(self, document: Places, position: Places) -> Units:
        """What the sentences of a batch are compared with, and their targets."""
        both = self.params.direction == "both"
        if self.params.loss == "block":
            return blocks_as_units(document, position, self.params.block_size, both=both)
        return sentences_as_units(document, position, self.params.context_size, both=both)

    def loss(self, encoded: Gaussian, units: Units) -> Tensor:
        """Σ over this worker's sentences of KL(targets ‖ softmax of the scores), (); sentences without a target add nothing.

        The targets of a sentence have equal weights.

        Args:
            encoded: (n_r, 2 D), this worker's sentences.
            units: of the global batch.
        """
        n = len(units.own)
        f, g = _halves(encoded)
        if self.similarity is not None:
            everyone = collectives.gather_gaussians([g], n)[0]
        else:
            # Only the means are exchanged; no score looks at the variances.
            mean = collectives.gather_rows(g.mean, n)
            everyone = Gaussian(mean, torch.zeros_like(mean))
        scores = self._scores(f, everyone) / self.params.temperature
        device = scores.device
        targets, excluded = units.targets(collectives.shard(n))
        if units.members.shape[1] > 1:
            scores = scores[:, to_device(units.members, device)].mean(-1)
        # The rows are chosen on the CPU: how many there are must be known without waiting for a GPU.
        counts = targets.sum(1)
        rows = counts.nonzero()[:, 0]
        targets, excluded = to_device(targets[rows], device), to_device(excluded[rows], device)
        log_p = scores[to_device(rows, device)].masked_fill(excluded, float("-inf")).log_softmax(-1)
        counts = to_device(counts[rows].to(scores.dtype), device)
        # An excluded unit has log-probability −∞, and 0 · −∞ is NaN.
        cross_entropy = -torch.where(targets, log_p, 0.0).sum(1) / counts
        return (cross_entropy - counts.log()).sum()

    def _scores(self, f: Gaussian, g: Gaussian) -> Tensor:
        """(a, c) scores of a sentences and c candidates."""
        if self.params.score == "kl":
            return pairwise_similarity(g, f, "kl").T
        if self.params.score == "cosine":
            return F.normalize(f.mean) @ F.normalize(g.mean).T
        return f.mean @ g.mean.T


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBatch:
    """This worker's sentences of a global batch.

    Attributes:
        sentences: one array, (n_r,) sentence numbers.
        units: of the global batch.
        n: sentences of the global batch.
        counted: those that have a target.
    """

    objective: QuickThoughtsObjective
    sentences: list[NDArray[np.int32]]
    units: Units
    n: int
    counted: int

    def loss(self, encoded: Sequence[Tensor], modules: nn.Module | None = None) -> Tensor:
        """The objective's loss; encoded: (n_r, 2, 2 D)."""
        return self.objective.loss(Gaussian(encoded[0][:, 0], encoded[0][:, 1]), self.units)


class DocumentBatches(EpochBatches):
    """The global batches of a run over running text.

    In each epoch every document is cut into runs of `run_length` sentences, from an offset drawn for it, and the runs are put in
    random order. The sentences are cut into batches in this order, so a batch may cut a run. Row numbers are those of
    documents.parquet, and the source of a row is its document.

    Raises:
        UserError: there are fewer sentences than the workers need, or none has a target.
    """

    def __init__(
        self, objective: QuickThoughtsObjective, rows: Rows, batch_size: int, seed: int, block_rows: int | None = None
    ) -> None:
        self._objective, self._sentence = objective, rows.column("sentence")
        self._document = rows.column("document").astype(np.int64)
        self._position = rows.column("position").astype(np.int64)
        super().__init__(len(rows), self._document.__getitem__, batch_size, seed, block_rows)
        least = 2 * collectives.world_size()
        if len(self) < least:
            raise UserError(f"{rows.directory}: {len(self)} sentences of running text; training needs {least} or more")
        if not objective.units(self._document, self._position).with_targets():
            raise UserError(
                f"{rows.directory}: no document is long enough for two blocks of {objective.params.block_size} sentences; lower "
                "objective.block_size (params.yaml)"
            )

    def sentences(self, step: int) -> NDArray[np.int32]:
        """(n,) the sentences of a step's global batch."""
        return self._sentence[self.rows(step)]

    def batch(self, step: int) -> DocumentBatch:
        """This worker's share of a step's global batch."""
        rows = self.rows(step)
        own = self._sentence[rows[collectives.shard(len(rows))]]
        units = self._objective.units(self._document[rows], self._position[rows])
        counted = units.with_targets()
        return DocumentBatch(objective=self._objective, sentences=[own], units=units, n=len(rows), counted=counted)

    def _rows_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        begins = np.diff(self._document, prepend=-1) != 0
        if (length := self._objective.params.run_length) is not None:
            offset = random.integers(0, length, int(begins.sum()))
            run = (self._position + offset[np.cumsum(begins) - 1]) // length
            begins |= np.diff(run, prepend=-1) != 0
        starts = np.flatnonzero(begins)
        sizes = np.diff(np.append(starts, len(self)))
        runs = None if self._block is None else max(1, self._block * len(starts) // len(self))
        order = random_order(len(starts), runs, random)[:]
        # The rows of run k, for each run in the new order: its first row, and the rows after it.
        first = np.repeat(starts[order] - (np.cumsum(sizes[order]) - sizes[order]), sizes[order])
        return first + np.arange(len(self))


def _halves(encoded: Gaussian) -> tuple[Gaussian, Gaussian]:
    """(..., 2 D) → f and g, (..., D) each."""
    f, g = (Gaussian(*half) for half in zip(encoded.mean.chunk(2, -1), encoded.log_var.chunk(2, -1), strict=True))
    return f, g
