"""Entailment search by size of the corpus, against brute force over all pairs and against faiss."""

# Lint and types are checked without the extra `bench` too.
# pyright: reportMissingImports=false

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from bench.measure import Row, alone, in_turn, ratio
from pipeline.gaussian import Gaussian, pairwise_similarity
from pipeline.search import EntailmentIndex, Way

# D of the packaged encoder.
DIM, THREADS = 384, 2
QUERIES, K, CANDIDATES = 32, 10, 64
WAY: Way = "entails"
TOPICS = 2_000
# Vectors of the corpus that brute force compares at a time.
PIECE = 65_536
PRECISIONS = ("float32", "float16")


def run(quick: bool) -> list[Row]:
    """Both precisions at three sizes: a batch of queries and one alone; memory with the building of the index in it."""
    torch.set_num_threads(THREADS)
    rows: list[Row] = []
    for size, repeats in ((500, 1), (2_000, 1)) if quick else ((10_000, 5), (100_000, 5), (1_000_000, 3)):
        rows += _rows(size, repeats)
    return rows + _against_faiss(*((2_000, 1) if quick else (100_000, 5)))


def searching(size: int, precision: str) -> Callable[[], None]:
    """Build an index and search it once."""
    torch.set_num_threads(THREADS)
    corpus, queries = drawn(size)

    def work() -> None:
        _built(corpus, precision).search(queries, WAY, K)

    return work


def brute(size: int) -> Callable[[], None]:
    """Search without an index."""
    torch.set_num_threads(THREADS)
    corpus, queries = drawn(size)
    return lambda: (_brute(corpus, queries), None)[1]


def drawn(size: int) -> tuple[Gaussian, Gaussian]:
    """A corpus, (size, D), and queries, (n, D), which lie in it as sentences do: around topics, some of them close together."""
    generator = torch.Generator().manual_seed(1)

    def noise(count: int, spread: float) -> torch.Tensor:
        return torch.randn(count, DIM, generator=generator).mul_(spread)

    topics, widths = noise(TOPICS, 0.5), noise(TOPICS, 0.3)

    def around(count: int) -> Gaussian:
        topic = torch.randint(TOPICS, (count,), generator=generator)
        mean = topics[topic].add_(noise(count, 0.3)).tanh_()
        return Gaussian(mean, widths[topic].add_(noise(count, 0.2)).sub_(2.0))

    return around(size), around(QUERIES)


def _rows(size: int, repeats: int) -> list[Row]:
    # First, for it takes as much memory as the machine has to spare.
    plain = alone("bench.search:brute", size=size)["grown_mb"]
    costs = {precision: alone("bench.search:searching", size=size, precision=precision) for precision in PRECISIONS}
    corpus, queries = drawn(size)
    indexes = {precision: _built(corpus, precision) for precision in PRECISIONS}
    # Of the batch and of the first query alone, in one round.
    work: dict[str, Callable[[], object]] = {}
    for count in (QUERIES, 1):
        asked = queries[:count]
        for name, index in indexes.items():
            work[f"{name} {count}"] = lambda index=index, asked=asked: index.search(asked, WAY, K)
        work[f"brute {count}"] = lambda asked=asked: _brute(corpus, asked)
    seconds = in_turn(work, repeats)
    best = _brute(corpus, queries)
    found = {(name, few): _recall(index, queries, best, few) for name, index in indexes.items() for few in (False, True)}
    rows: list[Row] = []
    for precision, cost in costs.items():
        for count in (QUERIES, 1):
            ours, theirs = seconds[f"{precision} {count}"], seconds[f"brute {count}"]
            factor, spread = ratio(ours, theirs)
            recall, least = found[precision, False], found[precision, True]
            rows.append(
                Row(
                    name=f"search {size}, {precision}, {_shown(count)}, against all pairs",
                    ours=1000 * statistics.median(ours) / count,
                    baseline=1000 * statistics.median(theirs) / count,
                    ratio=factor,
                    unit="ms/query",
                    peak_mb=cost["grown_mb"],
                    baseline_peak_mb=plain,
                    note=f"{spread}; recall@{K} {recall:.4f}, without candidates to spare {least:.4f}; built and "
                    f"searched once in {cost['seconds']:.3g} s",
                )
            )
    return rows


def _against_faiss(size: int, repeats: int) -> list[Row]:
    """Flat indexes of faiss over the same vectors, which give candidates and do not rank them."""
    import faiss

    corpus, queries = drawn(size)
    rows: list[Row] = []
    for precision in PRECISIONS:
        index = _built(corpus, precision)
        vectors, asked = index._vectors[WAY], index._query_vectors(queries, WAY).numpy()
        width = vectors.shape[1]
        half = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        theirs = faiss.IndexFlatIP(width) if precision == "float32" else half
        theirs.add(vectors.float().numpy())
        for count in (QUERIES, 1):
            work: dict[str, Callable[[], object]] = {
                "ours": lambda index=index, count=count: index.search(queries[:count], WAY, K),
                "faiss": lambda theirs=theirs, asked=asked, count=count: theirs.search(asked[:count], CANDIDATES),
            }
            seconds = in_turn(work, repeats)
            factor, spread = ratio(seconds["ours"], seconds["faiss"])
            rows.append(
                Row(
                    name=f"search {size}, {precision}, {_shown(count)}, against faiss",
                    ours=1000 * statistics.median(seconds["ours"]) / count,
                    baseline=1000 * statistics.median(seconds["faiss"]) / count,
                    ratio=factor,
                    unit="ms/query",
                    peak_mb=vectors.nbytes / 1e6,
                    baseline_peak_mb=theirs.ntotal * theirs.code_size / 1e6,
                    note=f"{spread}; the memory is that of the vectors",
                )
            )
    return rows


def _shown(count: int) -> str:
    return f"{count} queries" if count > 1 else "1 query"


def _built(corpus: Gaussian, precision: str) -> EntailmentIndex:
    return EntailmentIndex.build(corpus, (WAY,), half=precision == "float16")


def _brute(corpus: Gaussian, queries: Gaussian) -> NDArray[np.int64]:
    """Rows of the best, (n, k), by the similarity of all pairs; a piece of the corpus at a time."""
    sims, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(corpus), PIECE):
        best = pairwise_similarity(queries, corpus[start : start + PIECE]).topk(min(K, len(corpus) - start))
        sims, rows = torch.cat((sims, best.values), 1), torch.cat((rows, best.indices + start), 1)
        kept = sims.topk(min(K, sims.shape[1]))
        sims, rows = kept.values, rows.gather(1, kept.indices)
    return rows.numpy()


def _recall(index: EntailmentIndex, queries: Gaussian, best: NDArray[np.int64], few: bool) -> float:
    """Share of the best that is found; `few`: where the index gives no more candidates than are asked for."""
    rows = index.search(queries, WAY, K, candidates=K if few else None).rows
    return float(np.mean([np.isin(mine, theirs).mean() for mine, theirs in zip(rows, best, strict=True)]))
