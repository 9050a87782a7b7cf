"""Entailment search against brute force: both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pipeline.gaussian.distribution import Gaussian
from pipeline.inference import entailment_index
from pipeline.inference.entailment_index import EntailmentIndex, nearest
from pipeline.inference.index_vectors import WAYS, Way
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation, with_tokens

D, N = 48, 3000


def gaussians(n: int, seed: int, *, spread: float = 0.3, level: float = 0.5, log_var: float = -1.0) -> Gaussian:
    """As encoders make them: means about a centre of their own, variances that differ from dimension to dimension."""
    g = torch.Generator().manual_seed(seed)
    centre = level * torch.randn(D, generator=torch.Generator().manual_seed(9))
    per_dimension = log_var + torch.randn(D, generator=torch.Generator().manual_seed(8))
    return Gaussian(centre + spread * torch.randn(n, D, generator=g), per_dimension + 0.3 * torch.randn(n, D, generator=g))


@pytest.fixture(scope="module")
def corpus() -> Gaussian:
    made = gaussians(N, 1)
    # Some stand there twice.
    return with_tokens(Gaussian.cat([made, made[:50]]))


@pytest.fixture(scope="module")
def index(corpus: Gaussian) -> EntailmentIndex:
    return EntailmentIndex.build(corpus)


def oracle(corpus: Gaussian, query: Gaussian, way: Way) -> NDArray[np.longdouble]:
    """(N,) KL of the hypothesis from the premise, by its definition, in the widest floating-point type."""
    hypothesis, premise = (query, corpus) if way == "entails" else (corpus, query)
    mean_h, log_h, mean_p, log_p = (
        tensor.double().numpy().astype(np.longdouble) for one in (hypothesis, premise) for tensor in (one.mean, one.log_var)
    )
    d = log_h - log_p
    return ((np.expm1(d) - d + (mean_h - mean_p) ** 2 * np.exp(-log_p)) / 2).sum(-1)


def assert_exact(rows: np.ndarray, sims: np.ndarray, kl: NDArray[np.longdouble]) -> None:
    """The k best by the oracle, up to ties within the rounding of float64."""
    assert len(set(rows.tolist())) == len(rows)
    np.testing.assert_allclose(kl[rows].astype(float), np.sort(kl)[: len(rows)].astype(float), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(sims, (1 / (1 + kl[rows])).astype(float), rtol=1e-6)


def narrow(n: int, seed: int, level: float = -10.0) -> Gaussian:
    """Two tight groups, far from each other compared with their deviations of 0.007: products cancel nearly all their digits."""
    g = torch.Generator().manual_seed(seed)
    groups = torch.randn(2, D, generator=torch.Generator().manual_seed(9))
    mean = groups[torch.randint(2, (n,), generator=g)] + 2e-4 * torch.randn(n, D, generator=g)
    return Gaussian(mean, level + 0.1 * torch.randn(n, D, generator=g))


def test_an_ordinary_corpus_needs_no_second_pass(
    corpus: Gaussian, index: EntailmentIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntailmentIndex, "_second_pass", None)
    for way in WAYS:
        index.search(Gaussian.cat([gaussians(20, 2), corpus[:5]]), way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", [-95.0, 95.0])
def test_queries_whose_vectors_overflow_are_compared_with_every_row(corpus: Gaussian, way: Way, level: float) -> None:
    query = Gaussian(corpus.mean[:1] + 0.1, torch.full((1, D), level))
    found = EntailmentIndex.build(corpus, (way,)).search(query, way)
    kl = oracle(corpus, query, way)
    np.testing.assert_allclose(kl[found.rows[0]].astype(float), np.sort(kl)[:10].astype(float), rtol=1e-11)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Gaussian, Gaussian]:
    """A corpus and queries with log-variances from −20 to 20, of shapes that are hard for products of rounded vectors."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size, dim, asked = draw(st.integers(1, 120)), draw(st.sampled_from([1, 2, 7, 33])), draw(st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    far, spread = 10.0 ** draw(st.integers(-4, 4)), 10.0 ** draw(st.integers(-6, 2))
    level, width = draw(st.floats(-20, 20)), draw(st.sampled_from([0.0, 0.01, 1.0, 20.0]))

    def drawn(n: int) -> Gaussian:
        mean = far * torch.randn(groups, dim, generator=torch.Generator().manual_seed(1))
        mean = mean[torch.randint(groups, (n,), generator=g)] + spread * torch.randn(n, dim, generator=g)
        log_var = level + width * (2 * torch.rand(n, dim, generator=g) - 1)
        return Gaussian(mean, log_var.clamp(-20, 20))

    corpus = drawn(size)
    if draw(st.booleans()):
        # Copies, and copies that differ in the last bit.
        copies = corpus[torch.randint(size, (20,), generator=g)]
        other = torch.nextafter(copies.mean, torch.tensor(torch.inf))
        corpus = Gaussian.cat([corpus, copies, Gaussian(other, copies.log_var)])
    if draw(st.booleans()):
        # One row that moves the centre and the scale.
        corpus = Gaussian.cat(
            [corpus, Gaussian(torch.full((1, dim), 1e4), torch.full((1, dim), draw(st.sampled_from([-20.0, 20.0]))))]
        )
    own = corpus[torch.randint(len(corpus), (asked,), generator=g)]
    return corpus, Gaussian.cat([own, drawn(asked)])


@given(case=cases(), k=st.integers(1, 12), candidates=st.sampled_from([None, 1]))
@example(case=(narrow(300, 1), narrow(4, 2)), k=10, candidates=None)
@example(case=(gaussians(300, 1, spread=0.05, level=30.0, log_var=-6.0), gaussians(4, 2, level=30.0)), k=10, candidates=None)
@settings(max_examples=100, deadline=None, database=None, derandomize=True)
def test_answers_are_those_of_brute_force(case: tuple[Gaussian, Gaussian], k: int, candidates: int | None) -> None:
    corpus, queries = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entailment_index, "_PIECE", 50)
        patch.setattr(entailment_index, "_FEWEST", 16)
        for way in WAYS:
            index = EntailmentIndex.build(corpus, (way,))
            found = index.search(queries, way, k, candidates=candidates)
            kept, side = min(k, len(corpus)), index._sides[way]
            bounds = index._frame.queries(queries, way, side.largest)
            products = bounds.vectors @ side.vectors.T
            low, high = bounds.low(products), bounds.high(products, side.row_terms)
            for n in range(len(queries)):
                kl = oracle(corpus, queries[n : n + 1], way)
                assert_exact(found.rows[n, :kept], found.sims[n, :kept], kl)
                twice = 2 * kl.astype(float)
                assert not (low[n].numpy() > twice * (1 + 1e-12)).any()
                assert not (high[n].numpy() < twice * (1 - 1e-12)).any()


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_query_are_its_nearest(corpus: Gaussian, index: EntailmentIndex, way: Way) -> None:
    queries = Gaussian.cat([gaussians(20, 2), corpus[:5]])
    found = index.search(queries, way)
    assert found.rows.shape == found.sims.shape == (25, 10)
    for n in range(len(queries)):
        assert_exact(found.rows[n], found.sims[n], oracle(corpus, queries[n : n + 1], way))
    # What is in the corpus is nearest to itself, its copy after it.
    assert found.rows[20:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.rows[20:, 1].tolist() == [N, N + 1, N + 2, N + 3, N + 4]
    np.testing.assert_allclose(found.sims[20:, :2], 1, atol=1e-6)


def test_the_size_of_pieces_changes_nothing(corpus: Gaussian, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = gaussians(30, 5)
    expected = EntailmentIndex.build(corpus).search(queries, "entails", 50)
    # Pieces smaller than what is asked for, the best taken many times, some queries at a time.
    monkeypatch.setattr(entailment_index, "_PIECE", 70)
    monkeypatch.setattr(entailment_index, "_KEPT", 2)
    monkeypatch.setattr(entailment_index, "_PRODUCTS", 7 * 70)
    monkeypatch.setattr(entailment_index, "_ELEMENTS", 7 * D)
    found = EntailmentIndex.build(corpus).search(queries, "entails", 50)
    assert found.rows.tolist() == expected.rows.tolist()
    np.testing.assert_allclose(found.sims, expected.sims, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_relation_head_ranks_the_nearest(corpus: Gaussian, index: EntailmentIndex, way: Way) -> None:
    relation = drawn_relation()
    queries = corpus[:5]
    rows, probabilities = index.ranked(queries, way, relation, 3, candidates=20)
    near = index.search(queries, way, 20).rows
    for number in range(5):
        query = queries[[number] * 20]
        found = corpus[torch.from_numpy(near[number])]
        score = (relation.score(found, query) if way == "entails" else relation.score(query, found)).numpy()
        best = np.argsort(-score, kind="stable")[:3]
        assert rows[number].tolist() == near[number][best].tolist()
        np.testing.assert_allclose(probabilities[number], score[best])
    # There are not more rows than the corpus has.
    few = EntailmentIndex.build(corpus[:2], (way,))
    rows, probabilities = few.ranked(queries[:1], way, relation, 4)
    assert sorted(rows[0].tolist()) == [-1, -1, 0, 1]
    assert (rows[0, 2:].tolist(), probabilities[0, 2:].tolist()) == ([-1, -1], [0, 0])
    with pytest.raises(UserError, match="k is 0: write a whole number of at least 1"):
        index.ranked(queries, way, relation, 0)
    with pytest.raises(UserError, match="the relation head has 3 dimensions, the sentences 8"):
        index.ranked(queries, way, drawn_relation(dim=3))


def test_what_is_too_far_is_left_out(corpus: Gaussian, index: EntailmentIndex) -> None:
    queries = gaussians(3, 6)
    every = index.search(queries, "entails", 10)
    limit = float(every.sims[0, 4])
    some = index.search(queries, "entails", 10, min_sim=limit)
    assert (some.rows[0] >= 0).sum() == 5
    assert some.rows[0, :5].tolist() == every.rows[0, :5].tolist()
    assert some.rows[0, 5:].tolist() == [-1] * 5
    assert some.sims[0, 5:].tolist() == [0.0] * 5
    small = EntailmentIndex.build(corpus[:4])
    found = small.search(queries, "entailed", 10)
    assert ((found.rows >= 0).sum(1) == 4).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_second_pass_ranks_few_rows(
    corpus: Gaussian, index: EntailmentIndex, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    ranked: list[int] = []
    paired_kl = EntailmentIndex._paired_kl

    def counted(self: EntailmentIndex, queries: Gaussian, rows: Tensor, needed: Tensor, way: Way) -> Tensor:
        ranked.append(int(needed.sum()))
        return paired_kl(self, queries, rows, needed, way)

    monkeypatch.setattr(EntailmentIndex, "_paired_kl", counted)
    queries = gaussians(20, 2)
    # No more candidates than answers: there is always a second pass. But they are the best, so that it finds hardly any others.
    found = index.search(queries, way, candidates=1)
    assert len(ranked) >= 2
    assert 200 <= sum(ranked[1:]) <= 220
    for n in range(len(queries)):
        assert_exact(found.rows[n], found.sims[n], oracle(corpus, queries[n : n + 1], way))


def test_what_cannot_be_searched_is_one_line(corpus: Gaussian, index: EntailmentIndex) -> None:
    queries = gaussians(1, 1)
    with pytest.raises(UserError, match="the corpus is empty"):
        EntailmentIndex.build(corpus[:0])
    with pytest.raises(UserError, match="not finite"):
        EntailmentIndex.build(Gaussian(corpus.mean * float("nan"), corpus.log_var))
    with pytest.raises(UserError, match="too small for float32, compared with the spread of its means"):
        EntailmentIndex.build(Gaussian(corpus.mean, torch.cat([corpus.log_var[1:], corpus.log_var[:1] - 200])))
    with pytest.raises(UserError, match="was built for entails, not for 'entailed'"):
        EntailmentIndex.build(corpus, ("entails",)).search(queries, "entailed")
    with pytest.raises(UserError, match="the queries have numbers that are not finite"):
        index.search(Gaussian(queries.mean, queries.log_var * float("inf")), "entails")
    with pytest.raises(UserError, match="k is 0"):
        index.search(queries, "entails", 0)
    with pytest.raises(UserError, match="the queries have 7 dimensions, the corpus 48"):
        index.search(Gaussian(torch.zeros(1, 7), torch.zeros(1, 7)), "entails")


def test_the_nearest_by_cosine_are_those_of_a_full_sort() -> None:
    draw = torch.Generator().manual_seed(4)
    corpus, queries = torch.randn((5000, 8), generator=draw), torch.randn((3, 8), generator=draw)
    rows, cosines = nearest(corpus, queries, 7)
    expected = torch.nn.functional.cosine_similarity(queries[:, None].double(), corpus[None].double(), dim=-1)
    order = expected.argsort(dim=1, descending=True)[:, :7]
    assert rows.tolist() == order.tolist()
    np.testing.assert_allclose(cosines, expected.gather(1, order).numpy(), atol=1e-6)
    assert nearest(corpus[:4], queries, 7)[0].shape == (3, 4)
    with pytest.raises(UserError, match="the corpus is empty"):
        nearest(corpus[:0], queries, 7)
    with pytest.raises(UserError, match="k is 0: write a whole number of at least 1"):
        nearest(corpus, queries, 0)
