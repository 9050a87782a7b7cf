"""Entailment search: of many sentences those that entail one, or that one entails.

A premise p entails a hypothesis h by sim(h‖p) = 1 / (1 + KL(h‖p)), so what entails a query q are the x with the smallest KL(q‖x),
and what q entails those with the smallest KL(x‖q). Up to a constant of q, −2·KL is an inner product of vectors of q and x:

    −2·KL(q‖x) = Σ [ −(σ²_q + μ²_q)·e^(−ℓ_x) + 2·μ_q·μ_x·e^(−ℓ_x) ] + 1·(−Σ [ μ²_x·e^(−ℓ_x) + ℓ_x ]) + Σ [ 1 + ℓ_q ]
    −2·KL(x‖q) = Σ [ −e^(−ℓ_q)·(σ²_x + μ²_x) + 2·μ_q·e^(−ℓ_q)·μ_x ] + 1·Σ ℓ_x + Σ [ 1 − μ²_q·e^(−ℓ_q) − ℓ_q ]

over d = 1 … D, so 2·D + 1 numbers each. The search is a matrix product with all of the corpus (graph indexes lose recall on such
inner products), exact up to rounding. But float32 adds large numbers up to a small one: more candidates are taken than asked for
and ranked again by the paired KL, which is accurate. KL does not change when all means are shifted and dimensions scaled for all
alike; the corpus's own centre and spread are taken out first, so that little is left to cancel, and float16 seldom overflows.

Models that were trained with kl-dimwise are searched by KL too: the mean of 1 / (1 + KL_d) is no inner product.

Shapes: N vectors of the corpus, n queries, D dimensions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from pipeline.errors import UserError
from pipeline.files import check_sums, read_json, refuse_taken, write_directory, write_sums
from pipeline.gaussian import Gaussian, kl_divergence
from pipeline.weights import write_tensors

FORMAT = "gausscse-search-1"
_ABOUT = "search.json"
Way = Literal["entails", "entailed"]
"""What the corpus is to a query: sentences that entail it (premises), or that it entails (hypotheses)."""
WAYS: tuple[Way, ...] = ("entails", "entailed")
# Candidates ranked again for each result that is asked for, and at least.
_CANDIDATES, _FEWEST = 4, 64
# Of the candidates of as many queries as are searched at a time: 16 MB in float32.
_ELEMENTS = 1 << 22
# Rows of the corpus compared at a time, which a cache holds when they come out of float16; and how many times the candidates
# that are asked for may come together before the best of them are taken.
_PIECE, _KEPT = 2048, 32


@dataclass(frozen=True, slots=True)
class Found:
    """The best of a corpus for n queries, best first.

    Attributes:
        rows: (n, k) of the corpus; −1 where fewer were found.
        sims: (n, k) sim(hypothesis‖premise) in (0, 1], whichever of the two the query is; 0 where fewer were found.
    """

    rows: NDArray[np.int64]
    sims: NDArray[np.float32]


class EntailmentIndex:
    """Gaussians of a corpus, and their vectors for each way to ask.

    `build` and `load` make one.
    """

    def __init__(self, corpus: Gaussian, shift: Tensor, scale: Tensor, vectors: dict[Way, Tensor], *, half: bool) -> None:
        self.corpus = corpus
        self._shift, self._scale, self._vectors, self._half = shift, scale, vectors, half

    def __len__(self) -> int:
        return len(self.corpus)

    @staticmethod
    def build(corpus: Gaussian, ways: tuple[Way, ...] = WAYS, *, half: bool = False) -> EntailmentIndex:
        """An index of N Gaussians, in the order given.

        Args:
            corpus: (N, D), on the CPU.
            ways: which questions will be asked; each takes (2·D + 1)·4 bytes a Gaussian.
            half: keep the vectors in float16, half the memory. What is found is ranked by float32 all the same, but some of the
                best may not be found: the narrower the Gaussians are beside the spread of their means, the more.

        Raises:
            UserError: there is nothing to search, or a number is not finite or too large for its vector.
        """
        if not len(corpus):
            raise UserError("there is nothing to search: the corpus is empty")
        if not (corpus.mean.isfinite().all() and corpus.log_var.isfinite().all()):
            raise UserError("the corpus has numbers that are not finite")
        shift = corpus.mean.mean(0)
        # The typical deviation of a dimension, its own variance and the spread of the means together.
        scale = (corpus.variance.mean(0) + corpus.mean.var(0, correction=0)).sqrt().clamp_min(1e-12)
        made = EntailmentIndex(corpus, shift, scale, {}, half=half)
        for way in ways:
            kept = torch.empty(len(corpus), 2 * corpus.mean.shape[1] + 1, dtype=torch.float16 if half else torch.float32)
            for start in range(0, len(corpus), _PIECE):
                piece = kept[start : start + _PIECE].copy_(made._corpus_vectors(corpus[start : start + _PIECE], way))
                if not piece.isfinite().all():
                    raise UserError(
                        f"the corpus has variances that are too small beside the spread of its means for {kept.dtype}"
                    )
            made._vectors[way] = kept
        return made

    def search(self, queries: Gaussian, way: Way, k: int = 10, *, min_sim: float = 0.0, candidates: int | None = None) -> Found:
        """The k best of the corpus for each query.

        Args:
            queries: (n, D), on the CPU.
            way: "entails" for what entails the query, "entailed" for what the query entails.
            min_sim: leave out what is less similar.
            candidates: how many are ranked by the paired KL; by default four times k, at least 64.

        Raises:
            UserError: the index was not built for this way, k is not positive, or the queries have another dimension.
        """
        if way not in self._vectors:
            raise UserError(f"this index was built for {', '.join(self._vectors) or 'nothing'}, not for {way!r}")
        if k < 1:
            raise UserError(f"k is {k}: at least 1 is needed")
        if queries.mean.shape[1:] != self.corpus.mean.shape[1:]:
            ours, theirs = self.corpus.mean.shape[1], queries.mean.shape[-1]
            raise UserError(f"the queries have {theirs} dimensions, the corpus {ours}: they come from different models")
        count = min(len(self), max(k, candidates or max(_FEWEST, _CANDIDATES * k)))
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        sims = np.zeros((len(queries), k), dtype=np.float32)
        best = min(k, count)
        at_a_time = max(1, _ELEMENTS // (count * self.corpus.mean.shape[1]))
        for start in range(0, len(queries), at_a_time):
            part = queries[start : start + at_a_time]
            ranked, sim = (found[:, :best] for found in self._ranked(part, self._nearest(part, way, count), way))
            found, here = sim >= min_sim, slice(start, start + len(part))
            rows[here, :best], sims[here, :best] = np.where(found, ranked, -1), np.where(found, sim, 0)
        return Found(rows, sims)

    def _nearest(self, queries: Gaussian, way: Way, count: int) -> Tensor:
        """Rows with the largest inner products, (n, count), in the corpus's order."""
        asked, vectors = self._query_vectors(queries, way), self._vectors[way]
        products, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
        for start in range(0, len(self), _PIECE):
            piece = asked @ vectors[start : start + _PIECE].float().T
            best = piece.topk(min(count, piece.shape[1]), sorted=False)
            products, rows = torch.cat((products, best.values), 1), torch.cat((rows, best.indices + start), 1)
            if products.shape[1] > _KEPT * count or start + _PIECE >= len(self):
                products, kept = products.topk(min(count, products.shape[1]), sorted=False)
                rows = rows.gather(1, kept)
        return rows.sort(dim=1).values

    def _ranked(self, queries: Gaussian, near: Tensor, way: Way) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Candidates of each query, (n, c), and their similarities, best first; among equals the first in the corpus."""
        those, alike = self.corpus[near], Gaussian(queries.mean[:, None], queries.log_var[:, None])
        kl = (kl_divergence(alike, those) if way == "entails" else kl_divergence(those, alike)).numpy()
        order = np.argsort(kl, axis=1, kind="stable")
        return np.take_along_axis(near.numpy(), order, 1), (1 / (1 + np.take_along_axis(kl, order, 1))).astype(np.float32)

    def _standard(self, batch: Gaussian) -> tuple[Tensor, Tensor]:
        return (batch.mean - self._shift) / self._scale, batch.log_var - 2 * self._scale.log()

    def _corpus_vectors(self, batch: Gaussian, way: Way) -> Tensor:
        mean, log_var = self._standard(batch)
        if way == "entails":
            precision = (-log_var).exp()
            parts = (precision, mean * precision, -(mean.square() * precision + log_var).sum(-1, keepdim=True) / mean.shape[1])
        else:
            parts = (log_var.exp() + mean.square(), mean, log_var.sum(-1, keepdim=True) / mean.shape[1])
        return torch.cat(parts, dim=-1).float()

    def _query_vectors(self, batch: Gaussian, way: Way) -> Tensor:
        mean, log_var = self._standard(batch)
        # The last number of the corpus's vectors is a sum over D: divided by D there, multiplied here.
        ones = torch.full_like(mean[:, :1], float(mean.shape[1]))
        if way == "entails":
            parts = (-(log_var.exp() + mean.square()), 2 * mean, ones)
        else:
            precision = (-log_var).exp()
            parts = (-precision, 2 * mean * precision, ones)
        return torch.cat(parts, dim=-1).float()

    def save(self, path: str | Path) -> None:
        """Write the Gaussians, with SHA-256 sums, into a folder, whole or not at all; the index is made anew from them.

        Raises:
            UserError: there is something at `path` that `save` did not write.
        """
        path = Path(path).absolute()
        if not (path / _ABOUT).is_file():
            refuse_taken(path)
        with write_directory(path) as folder:
            about = {"format": FORMAT, "ways": list(self._vectors), "half": self._half}
            (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            tensors = {"mean": self.corpus.mean.contiguous(), "log_var": self.corpus.log_var.contiguous()}
            write_tensors(tensors, folder / "gaussians.safetensors")
            write_sums(folder)

    @staticmethod
    def load(path: str | Path) -> EntailmentIndex:
        """An index that `save` wrote.

        Raises:
            UserError: not such a folder, or a file differs from its sum.
        """
        path = Path(path)
        check_sums(path)
        about = read_json(path / _ABOUT)
        if about.get("format") != FORMAT:
            raise UserError(f"{path / _ABOUT}: format is {about.get('format')!r}, this version reads {FORMAT!r}")
        tensors = load_file(path / "gaussians.safetensors")
        corpus = Gaussian(tensors["mean"], tensors["log_var"])
        return EntailmentIndex.build(corpus, tuple(about["ways"]), half=bool(about["half"]))
