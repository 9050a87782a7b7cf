"""Entailment search in corpora of different sizes, against brute force over all pairs and against faiss."""

# Lint and types are also checked without the extra `bench`.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bench.measure import Row, alone, compared, in_turn, use_threads
from pipeline.gaussian.distribution import Gaussian, pairwise_similarity
from pipeline.inference.entailment_index import EntailmentIndex
from pipeline.inference.index_vectors import Way

# D of the packaged encoder.
DIM = 384
QUERIES, K, CANDIDATES = 32, 10, 64
WAY: Way = "entails"
TOPICS, NARROW_TOPICS = 2_000, 20
# Number of corpus vectors that brute force compares at a time.
PIECE = 65_536


def run(quick: bool) -> list[Row]:
    """Three sizes, and narrow Gaussians, each for a batch of queries and for a single query.

    The memory is that of building the index and searching it.
    """
    use_threads()
    rows: list[Row] = []
    for size, repeats in ((500, 1), (2_000, 1)) if quick else ((10_000, 5), (100_000, 5), (1_000_000, 3)):
        rows += _rows(size, repeats)
    middle = (2_000, 1) if quick else (100_000, 5)
    return rows + _rows(*middle, narrow=True) + _against_faiss(*middle)


def searching(size: int, narrow: bool) -> Callable[[], object]:
    """A function that builds an index and searches it once."""
    use_threads()
    corpus, queries = drawn(size, narrow=narrow)
    return lambda: EntailmentIndex.build(corpus, (WAY,)).search(queries, WAY, K)


def brute(size: int, narrow: bool) -> Callable[[], object]:
    """A function that searches without an index."""
    use_threads()
    return partial(_brute, *drawn(size, narrow=narrow))


def drawn(size: int, *, narrow: bool = False) -> tuple[Gaussian, Gaussian]:
    """A corpus (size, D) and queries (n, D), distributed like sentences: around topics, some of them close together.

    `narrow` is the hard case: log-variances are near −10, and rows of a topic lie a tenth of a standard deviation apart.
    """
    count_of_topics, apart, level, wide = (NARROW_TOPICS, 1e-3, -10.0, 0.1) if narrow else (TOPICS, 0.3, -2.0, 0.2)
    generator = torch.Generator().manual_seed(1)

    def noise(count: int, spread: float) -> torch.Tensor:
        return torch.randn(count, DIM, generator=generator).mul_(spread)

    topics, widths = noise(count_of_topics, 0.5), noise(count_of_topics, 0.3)

    def around(count: int) -> Gaussian:
        topic = torch.randint(count_of_topics, (count,), generator=generator)
        mean = topics[topic].add_(noise(count, apart)).tanh_()
        return Gaussian(mean, widths[topic].add_(noise(count, wide)).add_(level))

    return around(size), around(QUERIES)


def _rows(size: int, repeats: int, *, narrow: bool = False) -> list[Row]:
    # Brute force comes first, because it needs all the memory that the machine has to spare.
    plain = alone("bench.search:brute", size=size, narrow=narrow)["grown_mb"]
    cost = alone("bench.search:searching", size=size, narrow=narrow)
    corpus, queries = drawn(size, narrow=narrow)
    index = EntailmentIndex.build(corpus, (WAY,))
    # Each round has the whole batch, and the first query alone.
    work: dict[str, Callable[[], object]] = {}
    for count in (QUERIES, 1):
        asked = queries[:count]
        work[f"ours {count}"] = lambda asked=asked: index.search(asked, WAY, K)
        work[f"brute {count}"] = lambda asked=asked: _brute(corpus, asked)
    seconds = in_turn(work, repeats)
    recall = _recall(index.search(queries, WAY, K).rows, _brute(corpus, queries))
    rows: list[Row] = []
    for count in (QUERIES, 1):
        name = f"search {size}{' narrow' if narrow else ''}, {_shown(count)}, against all pairs"
        note = f"recall@{K} {recall:.4f}; built and searched once in {cost['seconds']:.3g} s"
        both = _by_query([seconds[f"{way} {count}"] for way in ("ours", "brute")], count)
        rows.append(compared(name, "ms/query", both, [cost["grown_mb"], plain], note=note))
    return rows


def _against_faiss(size: int, repeats: int) -> list[Row]:
    """Flat faiss indexes over the same vectors. They give candidates but do not rank them."""
    import faiss

    corpus, queries = drawn(size)
    rows: list[Row] = []
    index = EntailmentIndex.build(corpus, (WAY,))
    vectors, asked = index._sides[WAY].vectors, index._frame.queries(queries, WAY, index._sides[WAY].largest).vectors.numpy()
    theirs = faiss.IndexFlatIP(vectors.shape[1])
    theirs.add(vectors.numpy())
    for count in (QUERIES, 1):
        work: dict[str, Callable[[], object]] = {
            "ours": lambda count=count: index.search(queries[:count], WAY, K),
            "faiss": lambda count=count: theirs.search(asked[:count], CANDIDATES),
        }
        seconds = in_turn(work, repeats)
        name, note = f"search {size}, {_shown(count)}, against faiss", "the memory is that of the vectors"
        peaks = [size_of / 1e6 for size_of in (vectors.nbytes, theirs.ntotal * theirs.code_size)]
        rows.append(compared(name, "ms/query", _by_query(seconds.values(), count), peaks, note=note))
    return rows


def _by_query(seconds: Iterable[list[float]], count: int) -> list[list[float]]:
    """Milliseconds of a query, from the seconds of several."""
    return [[1000 * one / count for one in rounds] for rounds in seconds]


def _shown(count: int) -> str:
    return f"{count} queries" if count > 1 else "1 query"


def _brute(corpus: Gaussian, queries: Gaussian) -> NDArray[np.int64]:
    """Rows of the best matches, (n, k), from the similarities of all pairs, a piece of the corpus at a time."""
    sims, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(corpus), PIECE):
        best = pairwise_similarity(queries, corpus[start : start + PIECE]).topk(min(K, len(corpus) - start))
        sims, rows = torch.cat((sims, best.values), 1), torch.cat((rows, best.indices + start), 1)
        kept = sims.topk(min(K, sims.shape[1]))
        sims, rows = kept.values, rows.gather(1, kept.indices)
    return rows.numpy()


def _recall(rows: NDArray[np.int64], best: NDArray[np.int64]) -> float:
    """Share of the best rows that was found."""
    return float(np.mean([np.isin(mine, theirs).mean() for mine, theirs in zip(rows, best, strict=True)]))
