"""The bounds of an entailment search: true where numbers underflow or overflow, and no wider than their proof needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.gaussian.distribution import Gaussian
from pipeline.inference.index_vectors import WAYS, Frame, Way

Doubles = NDArray[np.float64]


def bounds_of(corpus: Gaussian, queries: Gaussian, way: Way) -> tuple[Doubles, Doubles]:
    """(n, N) what 2·KL is at least and at most, of Gaussians that are neither shifted nor scaled."""
    dim = corpus.mean.shape[1]
    frame = Frame(torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64))
    made, row_terms = frame.rows(corpus, way)
    kept = made.float()
    bounds = frame.queries(queries, way, float(kept.abs().amax()))
    products = bounds.vectors @ kept.T
    return bounds.low(products).numpy(), bounds.high(products, row_terms).numpy()


def twice_kl(corpus: Gaussian, queries: Gaussian, way: Way) -> Doubles:
    """(n, N) by the definition, in float64."""
    sides = [(one.mean.double().numpy(), one.log_var.double().numpy()) for one in (queries, corpus)]
    (mean_h, log_h), (mean_p, log_p) = [
        (m[:, None], v[:, None]) if one else (m, v) for one, (m, v) in zip((1, 0), sides, strict=True)
    ]
    if way == "entailed":
        (mean_h, log_h), (mean_p, log_p) = (mean_p, log_p), (mean_h, log_h)
    d = log_h - log_p
    return (np.expm1(d) - d + (mean_h - mean_p) ** 2 * np.exp(-log_p)).sum(-1)


def flat(*log_vars: float) -> Gaussian:
    """Of one dimension, around 0."""
    return Gaussian(torch.zeros(len(log_vars), 1), torch.tensor(log_vars)[:, None])


@pytest.fixture
def flushed() -> Iterator[None]:
    """float32 takes what is below its smallest normal number for 0, as a GPU or a processor that is told so does."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not take denormal numbers for 0")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed")
def test_bounds_hold_where_a_number_underflows_in_float32() -> None:
    # e^−87.4 = 1.1e-38 is below 2^−126 and becomes 0; times e^87 = 6e37 it would be 0.67.
    corpus, query = flat(-87.0), flat(-87.4)
    assert float(torch.tensor(-87.4).double().exp().float() * 2) == 0
    low, high = bounds_of(corpus, query, "entails")
    assert low < twice_kl(corpus, query, "entails") < high


@pytest.mark.parametrize("way", WAYS)
def test_bounds_say_nothing_where_a_product_overflows(way: Way) -> None:
    # e^46 times e^46 is 1e40, more than float32 holds; each of the two it does.
    corpus, query = (flat(-46.0, 0.0), flat(46.0)) if way == "entails" else (flat(46.0, 0.0), flat(-46.0))
    low, high = bounds_of(corpus, query, way)
    assert not (low > twice_kl(corpus, query, way)).any()
    assert not (high < twice_kl(corpus, query, way)).any()
    assert not np.isposinf(low).any()


@pytest.mark.parametrize("way", WAYS)
def test_bounds_are_no_wider_than_their_proof_needs(way: Way) -> None:
    g = torch.Generator().manual_seed(3)
    corpus, queries = (Gaussian(torch.randn(n, 5, generator=g), torch.randn(n, 5, generator=g)) for n in (40, 30))
    low, high = bounds_of(corpus, queries, way)
    twice = twice_kl(corpus, queries, way)
    assert (low < twice).all()
    assert (twice < high).all()
    # The terms of the proof by their names: S ≤ 4·(2·KL) + A + B, of which the share γ may be lost, up and down.
    size_q, size_x = (one.log_var.double().abs().sum(1).numpy() for one in (queries, corpus))
    premise = corpus if way == "entails" else queries
    own = (premise.mean.double().square() * (-premise.log_var.double()).exp()).sum(1).numpy()
    whole = 4 * twice + (5 + size_q)[:, None] + 2 * size_x + (6 * own if way == "entails" else 5 * own[:, None])
    gamma = (2 * 5 + 5) * 2.0**-24
    np.testing.assert_allclose((high - low) / (2 * gamma * whole), 1, atol=5e-3)
