"""Entailment search against brute force: both ways, in float32 and float16, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import search
from pipeline.errors import UserError
from pipeline.gaussian import Gaussian, kl_divergence
from pipeline.search import WAYS, EntailmentIndex, Way

D, N = 48, 3000


def gaussians(n: int, seed: int, *, spread: float = 0.3, level: float = 0.5, log_var: float = -1.0) -> Gaussian:
    """As encoders make them: means about a centre of their own, variances that differ from dimension to dimension."""
    g = torch.Generator().manual_seed(seed)
    centre = level * torch.randn(D, generator=torch.Generator().manual_seed(9))
    per_dimension = log_var + torch.randn(D, generator=torch.Generator().manual_seed(8))
    return Gaussian(centre + spread * torch.randn(n, D, generator=g), per_dimension + 0.3 * torch.randn(n, D, generator=g))


def brute_force(corpus: Gaussian, query: Gaussian, way: Way) -> np.ndarray:
    """(N,) sim of the hypothesis given the premise, in float64."""
    one = Gaussian(query.mean.double().expand(len(corpus), -1), query.log_var.double().expand(len(corpus), -1))
    other = corpus.to(torch.float64)
    kl = kl_divergence(one, other) if way == "entails" else kl_divergence(other, one)
    return (1 / (1 + kl)).numpy()


@pytest.fixture(scope="module")
def corpus() -> Gaussian:
    made = gaussians(N, 1)
    # Some stand there twice.
    return Gaussian.cat([made, made[:50]])


@pytest.fixture(scope="module")
def index(corpus: Gaussian) -> EntailmentIndex:
    return EntailmentIndex.build(corpus)


def assert_best(found_rows: np.ndarray, found_sims: np.ndarray, sims: np.ndarray, tolerance: float = 2e-6) -> None:
    """The k best by brute force, up to ties within what float32 can tell apart."""
    k = len(found_rows)
    best = np.sort(sims)[::-1][:k]
    assert len(set(found_rows.tolist())) == k
    np.testing.assert_allclose(sims[found_rows], best, atol=tolerance)
    np.testing.assert_allclose(found_sims, sims[found_rows], atol=tolerance)
    assert (np.diff(found_sims) <= 0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_the_ten_best_are_those_of_brute_force(corpus: Gaussian, way: Way, *, half: bool) -> None:
    index = EntailmentIndex.build(corpus, (way,), half=half)
    queries = Gaussian.cat([gaussians(20, 2), corpus[:5]])
    found = index.search(queries, way)
    assert found.rows.shape == found.sims.shape == (25, 10)
    for n in range(len(queries)):
        assert_best(found.rows[n], found.sims[n], brute_force(corpus, queries[n : n + 1], way))
    # What is in the corpus is nearest to itself, its copy after it.
    assert found.rows[20:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.rows[20:, 1].tolist() == [N, N + 1, N + 2, N + 3, N + 4]
    np.testing.assert_allclose(found.sims[20:, :2], 1, atol=1e-6)


def test_how_many_are_asked_or_compared_at_a_time_changes_nothing(corpus: Gaussian, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = gaussians(30, 5)
    expected = EntailmentIndex.build(corpus).search(queries, "entails", 50)
    # Pieces smaller than what is asked for, the best taken many times, some queries at a time.
    monkeypatch.setattr(search, "_PIECE", 70)
    monkeypatch.setattr(search, "_KEPT", 2)
    monkeypatch.setattr(search, "_ELEMENTS", 7 * 200 * D)
    found = EntailmentIndex.build(corpus).search(queries, "entails", 50)
    assert found.rows.tolist() == expected.rows.tolist()
    np.testing.assert_allclose(found.sims, expected.sims, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("spread", "level", "log_var"), [(0.05, 30.0, -6.0), (0.3, 0.5, 6.0), (1e-3, 0.0, -12.0)])
def test_far_off_narrow_and_wide_corpora_are_searched_as_well(way: Way, spread: float, level: float, log_var: float) -> None:
    corpus = gaussians(1000, 3, spread=spread, level=level, log_var=log_var)
    query = gaussians(1, 4, spread=spread, level=level, log_var=log_var)
    for half in (False, True):
        found = EntailmentIndex.build(corpus, (way,), half=half).search(query, way)
        assert_best(found.rows[0], found.sims[0], brute_force(corpus, query, way))


def test_the_ways_are_not_the_same(index: EntailmentIndex) -> None:
    queries = gaussians(5, 5)
    assert (index.search(queries, "entails").rows != index.search(queries, "entailed").rows).any()


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


def test_saved_and_loaded_it_finds_the_same(index: EntailmentIndex, tmp_path: Path) -> None:
    index.save(tmp_path / "index")
    loaded = EntailmentIndex.load(tmp_path / "index")
    assert len(loaded) == len(index)
    queries = gaussians(5, 7)
    for way in WAYS:
        ours, theirs = index.search(queries, way), loaded.search(queries, way)
        assert ours.rows.tolist() == theirs.rows.tolist()
        assert ours.sims.tolist() == theirs.sims.tolist()
    # What is not its own it leaves alone; what is it replaces.
    index.save(tmp_path / "index")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("of years", encoding="utf-8")
    with pytest.raises(UserError, match="thesis: is there already; name a new folder"):
        index.save(tmp_path / "thesis")
    assert (tmp_path / "thesis/chapter.txt").is_file()
    file = tmp_path / "index" / "gaussians.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"gaussians\.safetensors: differs from its SHA-256 sum"):
        EntailmentIndex.load(tmp_path / "index")


def test_what_cannot_be_searched_is_one_line(corpus: Gaussian, index: EntailmentIndex) -> None:
    queries = gaussians(1, 1)
    with pytest.raises(UserError, match="the corpus is empty"):
        EntailmentIndex.build(corpus[:0])
    with pytest.raises(UserError, match="not finite"):
        EntailmentIndex.build(Gaussian(corpus.mean * float("nan"), corpus.log_var))
    with pytest.raises(UserError, match=r"too small beside the spread of its means for torch\.float16"):
        EntailmentIndex.build(Gaussian(corpus.mean, torch.cat([corpus.log_var[1:], corpus.log_var[:1] - 30])), half=True)
    with pytest.raises(UserError, match="was built for entails, not for 'entailed'"):
        EntailmentIndex.build(corpus, ("entails",)).search(queries, "entailed")
    with pytest.raises(UserError, match="k is 0"):
        index.search(queries, "entails", 0)
    with pytest.raises(UserError, match="the queries have 7 dimensions, the corpus 48"):
        index.search(Gaussian(torch.zeros(1, 7), torch.zeros(1, 7)), "entails")
