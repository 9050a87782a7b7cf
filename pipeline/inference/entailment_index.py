"""Entailment search: find the sentences of a corpus that entail a query, or that the query entails.

The rows x of a corpus that entail a query q have the smallest KL(q‖x). The rows that q entails have the smallest KL(x‖q). Up to a
constant that depends on the query, both are inner products (see `index_vectors`). So the search is a matrix product with the
whole corpus; graph indexes lose recall on such inner products.

A product in float32 sums large numbers to a small one, so it only bounds a KL from below and above. The rows with the largest
products are the candidates. Candidates that the bounds cannot exclude are ranked by the paired KL in float64. The answer is
proven if the lower bounds of all other rows are not below the k-th KL. Otherwise a second pass computes the paired KL of every
row whose lower bound is not above the k-th KL; in the worst case these are all rows. So every answer is exact.

Models trained with kl-dimwise are searched by KL, too, because the mean of 1 / (1 + KL_d) is not an inner product.

Shapes: N vectors of the corpus, n queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.gaussian.distribution import Gaussian, kl_divergence
from pipeline.inference.corpus import Encoded, model_of, read_gaussians
from pipeline.inference.index_vectors import WAYS, Bounds, Frame, Way
from pipeline.models.relation_head import Relation, ScoreKind
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder

Ranking = Literal["similarity", "relation", "cosine"]

_HEADLESS = "this model has no relation head; rank by similarity, or train one with model.relation_head: tokens"
# Candidates for each requested result, and the fewest candidates.
_CANDIDATES, _FEWEST = 4, 64
# The most products of one group of queries with one piece of the corpus (4 MB), and the most elements of a temporary of the
# paired KL; both fit into a cache.
_PRODUCTS, _ELEMENTS = 1 << 20, 1 << 17
# Rows of the corpus in one piece, and the number of candidates that may
# accumulate before the best are selected, as a multiple of the wanted number.
_PIECE, _KEPT = 2048, 32


@dataclass(frozen=True, slots=True)
class Found:
    """The best rows of a corpus for n queries, best first: no other row has a smaller paired KL.

    KLs that differ by less than the rounding of the paired KL in float64 (relative 1e-12) are ties.

    Attributes:
        rows: (n, k) row numbers in the corpus; −1 if fewer were found.
        sims: (n, k) sim(hypothesis‖premise) in (0, 1], whichever of the two the query is; 0 if fewer were found.
    """

    rows: NDArray[np.int64]
    sims: NDArray[np.float32]


class _Side(NamedTuple):
    """The vectors of the corpus for one direction of search."""

    vectors: Tensor
    """(N, 2·D + 1), float32"""
    row_terms: Tensor
    """(N,) β·B, float64"""
    largest: float
    """the largest absolute number in the vectors"""


class EntailmentIndex:
    """Gaussians of a corpus, and their vectors for each direction of search. Made by `build`."""

    def __init__(self, corpus: Gaussian, frame: Frame, sides: dict[Way, _Side]) -> None:
        self.corpus = corpus
        self._frame, self._sides = frame, sides

    def __len__(self) -> int:
        return len(self.corpus)

    @staticmethod
    def build(corpus: Gaussian, ways: tuple[Way, ...] = WAYS) -> EntailmentIndex:
        """An index of N Gaussians, in the order given.

        Args:
            corpus: (N, D), on the CPU.
            ways: the directions to search in; each takes (2·D + 1)·4 bytes per Gaussian.

        Raises:
            UserError: the corpus is empty, or a number is not finite or too large for its vector.
        """
        if not len(corpus):
            raise UserError("there is nothing to search: the corpus is empty")
        if not (corpus.mean.isfinite().all() and corpus.log_var.isfinite().all()):
            raise UserError("the corpus has numbers that are not finite")
        frame = Frame.of(corpus)
        pieces = [corpus[start : start + _PIECE] for start in range(0, len(corpus), _PIECE)]
        return EntailmentIndex(corpus, frame, {way: _side(pieces, frame, way) for way in ways})

    def search(self, queries: Gaussian, way: Way, k: int = 10, *, min_sim: float = 0.0, candidates: int | None = None) -> Found:
        """The k best rows of the corpus for each query.

        Args:
            queries: (n, D), on the CPU.
            way: "entails": find rows that entail the query. "entailed": find rows that the query entails.
            min_sim: leave out rows with a lower similarity.
            candidates: number of candidates of the first pass; by default four times k, at least 64. It only changes the
                time.

        Raises:
            UserError: the index was not built for this direction, k is not positive, or the queries have a different dimension or
                numbers that are not finite.
        """
        if way not in self._sides:
            raise UserError(f"this index was built for {', '.join(self._sides) or 'nothing'}, not for {way!r}")
        _check(k)
        if queries.mean.shape[1:] != self.corpus.mean.shape[1:]:
            ours, theirs = self.corpus.mean.shape[1], queries.mean.shape[-1]
            raise UserError(f"the queries have {theirs} dimensions, the corpus {ours}: they come from different models")
        if not (queries.mean.isfinite().all() and queries.log_var.isfinite().all()):
            raise UserError("the queries have numbers that are not finite")
        count, best = min(len(self), max(k, candidates or max(_FEWEST, _CANDIDATES * k))), min(k, len(self))
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        sims = np.zeros((len(queries), k), dtype=np.float32)
        at_a_time = max(1, _PRODUCTS // _PIECE)
        for start in range(0, len(queries), at_a_time):
            block = slice(start, start + at_a_time)
            ranked, sim = self._answer(queries[block], way, best, count)
            similar = sim >= min_sim
            rows[block, :best], sims[block, :best] = np.where(similar, ranked, -1), np.where(similar, sim, 0)
        return Found(rows, sims)

    def ranked(
        self, queries: Gaussian, way: Way, relation: Relation, k: int = 10, *, candidates: int = 100
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k rows with the highest probability of entailment by a relation head, among the nearest by KL.

        Args:
            relation: the head of the model that made both the corpus and the queries.
            candidates: rows by KL that the head ranks, at least k.

        Returns:
            rows: (n, k) row numbers, best first; −1 if fewer were found.
            probabilities: (n, k) of "the premise entails the hypothesis"; 0 if fewer were found.

        Raises:
            UserError: as for `search`; or the head cannot read the corpus (`Relation.check`).
        """
        relation.check(self.corpus)
        _check(k)
        near = self.search(queries, way, max(k, min(candidates, len(self)))).rows
        probability = np.zeros(near.shape)
        for number, row_numbers in enumerate(near):
            kept = torch.from_numpy(row_numbers[row_numbers >= 0])
            query, rows = queries[torch.full_like(kept, number)], self.corpus[kept]
            score = relation.score(rows, query) if way == "entails" else relation.score(query, rows)
            probability[number, : len(kept)] = score.cpu().numpy()
        # Rows that do not exist have probability 0 and come last; among equals the nearer one comes first.
        order = np.argsort(np.where(near >= 0, -probability, 1.0), axis=1, kind="stable")[:, :k]
        return np.take_along_axis(near, order, 1), np.take_along_axis(probability, order, 1)

    def _answer(self, queries: Gaussian, way: Way, k: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and similarities of the k best, each (n, k)."""
        side = self._sides[way]
        bounds = self._frame.queries(queries, way, side.largest)
        kl, rows, proven = self._first_pass(queries, bounds, way, k, count)
        if not proven.all():
            unproven = torch.nonzero(~proven)[:, 0]
            kl[unproven], rows[unproven] = self._second_pass(queries[unproven], bounds[unproven], way, kl[unproven])
        return rows.numpy(), (1 / (1 + kl)).float().numpy()

    def _first_pass(self, queries: Gaussian, bounds: Bounds, way: Way, k: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """KLs and rows of the k best of `count` candidates, each (n, k), and whether they are proven to be the best, (n,)."""
        side = self._sides[way]
        products, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
        for start in range(0, len(self), _PIECE):
            piece = bounds.vectors @ side.vectors[start : start + _PIECE].T
            best = piece.topk(min(count, piece.shape[1]), sorted=False)
            products, rows = torch.cat((products, best.values), 1), torch.cat((rows, best.indices + start), 1)
            if products.shape[1] > _KEPT * count or start + _PIECE >= len(self):
                products, kept = products.topk(min(count, products.shape[1]), sorted=False)
                rows = rows.gather(1, kept)
        # In the order of the corpus, so that among equal KLs the earlier row comes first.
        rows, order = rows.sort(dim=1)
        products = products.gather(1, order)
        low, high = bounds.low(products), bounds.high(products, side.row_terms[rows])
        # At least k candidates have a KL within this bound.
        enough = high.kthvalue(k, dim=1, keepdim=True).values
        kl, rows = _smallest(self._paired_kl(queries, rows, ~(low > enough), way), rows, k)
        # All other rows have smaller products than the candidates, and so higher lower bounds.
        proven = low.amax(1) >= 2 * kl[:, -1] if count < len(self) else torch.ones(len(queries), dtype=torch.bool)
        return kl, rows, proven

    def _second_pass(self, queries: Gaussian, bounds: Bounds, way: Way, kl: Tensor) -> tuple[Tensor, Tensor]:
        """KLs and rows of the k best, each (n, k): tries every row whose lower bound is not above the k-th KL so far (`kl`)."""
        # The factor leaves room for the rounding of the paired KL.
        limit = 2 * kl[:, -1:] * (1 + 1e-9)
        kl, rows = torch.full_like(kl, torch.inf), torch.full(kl.shape, -1)
        for start in range(0, len(self), _PIECE):
            piece = bounds.vectors @ self._sides[way].vectors[start : start + _PIECE].T
            needed = ~(bounds.low(piece) > limit)
            if needed.any():
                piece_rows = torch.arange(start, start + piece.shape[1]).expand_as(piece)
                piece_kl = self._paired_kl(queries, piece_rows, needed, way)
                kl, rows = _smallest(torch.cat((kl, piece_kl), 1), torch.cat((rows, piece_rows), 1), kl.shape[1])
                limit = torch.minimum(limit, 2 * kl[:, -1:] * (1 + 1e-9))
        return kl, rows

    def _paired_kl(self, queries: Gaussian, rows: Tensor, needed: Tensor, way: Way) -> Tensor:
        """KL between each query and its rows, (n, m), float64, where `needed` is true; infinity elsewhere."""
        kl = torch.full(rows.shape, torch.inf, dtype=torch.float64)
        for block in needed.nonzero().split(max(1, _ELEMENTS // self.corpus.mean.shape[1])):
            i, j = block.unbind(1)
            query, candidate = queries[i].to(torch.float64), self.corpus[rows[i, j]].to(torch.float64)
            kl[i, j] = kl_divergence(query, candidate) if way == "entails" else kl_divergence(candidate, query)
        return kl


def _smallest(values: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest values of each query and their rows, each (n, k); among equal values the first."""
    values, order = values.sort(dim=1, stable=True)
    return values[:, :k], rows.gather(1, order[:, :k])


def _side(pieces: list[Gaussian], frame: Frame, way: Way) -> _Side:
    """The vectors of a corpus for one direction of search.

    Raises:
        UserError: a number is too large for its vector.
    """
    size, dim = sum(len(piece) for piece in pieces), len(frame.shift)
    side = _Side(torch.empty(size, 2 * dim + 1), torch.empty(size, dtype=torch.float64), 0.0)
    start = 0
    for piece in pieces:
        block = slice(start, start := start + len(piece))
        vectors, side.row_terms[block] = frame.rows(piece, way)
        stored = side.vectors[block].copy_(vectors)
        if not stored.isfinite().all():
            raise UserError("the corpus has variances that are too small for float32, compared with the spread of its means")
        side = side._replace(largest=max(side.largest, float(stored.abs().amax())))
    return side


def nearest(corpus: Tensor, queries: Tensor, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k rows of a corpus with the largest cosine with each query: (n, k) row numbers and cosines, largest first.

    Fewer columns if the corpus has fewer rows.

    Args:
        corpus: (N, D) means, or outputs of operators.
        queries: (n, D)

    Raises:
        UserError: the corpus is empty, or `k` is below 1.
    """
    if not len(corpus):
        raise UserError("there is nothing to search: the corpus is empty")
    _check(k)
    unit = F.normalize(queries.float())
    best = torch.empty((len(queries), 0))
    rows = torch.empty((len(queries), 0), dtype=torch.int64)
    for start in range(0, len(corpus), _PIECE):
        cosine = unit @ F.normalize(corpus[start : start + _PIECE].float()).T
        best, rows = torch.cat((best, cosine), 1), torch.cat((rows, (start + torch.arange(cosine.shape[1])).expand_as(cosine)), 1)
        best, order = best.topk(min(k, best.shape[1]), 1)
        rows = rows.gather(1, order)
    return rows.numpy(), best.numpy()


def _check(k: int) -> None:
    if not (isinstance(k, Integral) and k >= 1):
        raise UserError(f"k is {k!r}: write a whole number of at least 1")


@dataclass(frozen=True, slots=True)
class Searchable:
    """An encoded corpus in memory, and what its model can rank by."""

    corpus: Encoded
    index: EntailmentIndex | None
    """None if the model has no variances."""
    relation: Relation | None

    @staticmethod
    def of(encoder: GaussianEncoder, corpus: str | Path | Iterable[str], ways: Way | tuple[Way, ...], by: Ranking) -> Searchable:
        """Sentences to encode now, or a folder that `gausscse encode` wrote with the same encoder.

        Raises:
            UserError: another model encoded the folder, or this one cannot rank like that; errors as in `read`.
        """
        ways = (ways,) if isinstance(ways, str) else ways
        for way in ways:
            _check_choice(way, by)
        if by == "relation" and encoder.relation_head is None:
            raise UserError(_HEADLESS)
        kind = "cosine" if by == "cosine" else encoder.score_kind
        if isinstance(corpus, str | Path):
            if model_of(str(corpus)) != encoder.digest:
                raise UserError(f"{corpus}: was encoded by another model or engine; name those that did, or encode it again")
            return Searchable.read(str(corpus), kind, encoder.relation_head if by == "relation" else None, ways)
        texts = list(corpus)
        gaussians = encoder.encode(texts)
        found = Encoded(gaussians, list(range(len(texts))), pa.table({"sentence": texts}), encoder.digest or "")
        return Searchable(found, None if kind == "cosine" else EntailmentIndex.build(gaussians, ways), encoder.relation_head)

    @staticmethod
    def read(folder: str, kind: ScoreKind, relation: Relation | None, ways: tuple[Way, ...] = WAYS) -> Searchable:
        """The output of `gausscse encode` in a folder; errors as in `read_gaussians` and `EntailmentIndex.build`."""
        corpus = read_gaussians(folder, relation)
        return Searchable(corpus, None if kind == "cosine" else EntailmentIndex.build(corpus.gaussians, ways), relation)

    def search(self, queries: Gaussian, way: Way, k: int, min_sim: float, by: Ranking) -> list[list[dict[str, Any]]]:
        """The k best rows for each query, best first: `row`, `score` and the kept columns of the corpus.

        Raises:
            UserError: the model cannot rank this way.
        """
        if by == "cosine":
            rows, scores = nearest(self.corpus.gaussians.mean, queries.mean, k)
        elif self.index is None:
            raise UserError("this model has no variances, so it cannot say which sentence entails which; rank by cosine")
        elif by == "similarity":
            rows, scores = (found := self.index.search(queries, way, k)).rows, found.sims
        elif self.relation is None:
            raise UserError(_HEADLESS)
        else:
            rows, scores = self.index.ranked(queries, way, self.relation, k)
        results: list[list[dict[str, Any]]] = []
        for own_rows, own_scores in zip(rows, scores, strict=True):
            valid = (own_rows >= 0) & (own_scores >= min_sim)
            # A table without columns has no rows.
            kept = self.corpus.kept.take(own_rows[valid]).to_pylist() or [{}] * int(valid.sum())
            hits = zip(own_rows[valid], own_scores[valid], kept, strict=True)
            results.append([{**column, "row": self.corpus.rows[row], "score": float(score)} for row, score, column in hits])
        return results


def _check_choice(way: Way, by: Ranking) -> None:
    for name, value, known in (("way", way, WAYS), ("by", by, get_args(Ranking))):
        if value not in known:
            raise UserError(f"{name} is {value!r}: write {' or '.join(known)}")


def search(
    encoder: GaussianEncoder,
    corpus: str | Path | Iterable[str] | Searchable,
    sentences: str | Iterable[str],
    *,
    way: Way = "entailed",
    k: int = 10,
    min_score: float = -math.inf,
    by: Ranking = "similarity",
) -> list[Any]:
    """The sentences of a corpus that entail a sentence, or that it entails, best first.

    Args:
        corpus: a folder that `gausscse encode` wrote with this model, or sentences; for many searches, a `Searchable` of them.
        way: "entails": those that entail it; "entailed": those that it entails.
        k: most results of a sentence.
        min_score: results with a lower score are left out.
        by: "similarity": the exact nearest by KL; "relation": the 100 nearest, ranked by the relation head; "cosine".

    Returns:
        for one sentence, a list of dicts: `row`, `score` and the columns of the corpus; for several, a list of such lists.

    Raises:
        UserError: as in `Searchable.of`, or the model cannot rank this way.
    """
    _check_choice(way, by)
    searchable = corpus if isinstance(corpus, Searchable) else Searchable.of(encoder, corpus, (way,), by)
    if searchable.corpus.model != (encoder.digest or ""):
        raise UserError("the Searchable was made by another model or engine; make it with this one")
    lacking = (by == "similarity" and not searchable.index and encoder.score_kind != "cosine") or (
        by == "relation" and not searchable.relation and encoder.relation_head
    )
    if lacking:
        raise UserError(f"the Searchable cannot rank by {by}; make it with by={by!r}")
    queries = encoder.encode([sentences] if isinstance(sentences, str) else sentences)
    results = searchable.search(queries, way, k, min_score, by)
    return results[0] if isinstance(sentences, str) else results
