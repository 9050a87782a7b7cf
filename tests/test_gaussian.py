from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl

from pipeline import gaussian
from pipeline.gaussian import Gaussian, kl_divergence, pairwise_similarity, similarity


def draw(n: int, dim: int, seed: int, spread: float = 1.0, log_var: float = 1.0, dtype: torch.dtype = torch.float64) -> Gaussian:
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, dim, generator=g, dtype=torch.float64) * spread
    width = (torch.rand(n, dim, generator=g, dtype=torch.float64) * 2 - 1) * log_var
    return Gaussian(mean.to(dtype), width.to(dtype))


def oracle_kl(p: Gaussian, q: Gaussian) -> Tensor:
    return torch_kl(
        Independent(Normal(p.mean, (0.5 * p.log_var).exp()), 1), Independent(Normal(q.mean, (0.5 * q.log_var).exp()), 1)
    )


def leaves(g: Gaussian) -> Gaussian:
    return Gaussian(g.mean.clone().requires_grad_(), g.log_var.clone().requires_grad_())


def grads(value: Tensor, *gs: Gaussian) -> list[Tensor]:
    return list(torch.autograd.grad(value, [t for g in gs for t in (g.mean, g.log_var)]))


@pytest.mark.parametrize("dim", [1, 7, 384, 1024])
@pytest.mark.parametrize(("spread", "log_var"), [(1.0, 1.0), (1000.0, 3.0), (1.0, 20.0)])
def test_kl_and_its_gradient_equal_torch_distributions(dim: int, spread: float, log_var: float) -> None:
    p, q = leaves(draw(5, dim, 1, spread, log_var)), leaves(draw(5, dim, 2, spread, log_var))
    torch.testing.assert_close(kl_divergence(p, q), oracle_kl(p, q), rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(grads(kl_divergence(p, q).sum(), p, q), grads(oracle_kl(p, q).sum(), p, q), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_identical_gaussians_have_similarity_one_and_a_finite_gradient(kind: gaussian.SimilarityKind) -> None:
    p = leaves(draw(4, 384, 3, log_var=20.0, dtype=torch.float32))
    value = similarity(p, Gaussian(p.mean, p.log_var), kind)
    assert torch.equal(value, torch.ones(4))
    assert all(torch.isfinite(g).all() for g in grads(value.sum(), p))


def test_similarity_is_the_paper_s_and_the_released_code_s() -> None:
    # By hand: KL of N(0, 1) from N(1, 1) is 1/2, of N(0, 1) from N(0, e²) is (e⁻² − 1 + 2) / 2.
    p = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    q = Gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    first, second = 0.5, (torch.e**-2 + 1) / 2
    assert similarity(p, q).item() == pytest.approx(1 / (1 + first + second))
    assert similarity(p, q, "kl-dimwise").item() == pytest.approx((1 / (1 + first) + 1 / (1 + second)) / 2)


def test_similarity_is_asymmetric() -> None:
    narrow = Gaussian(torch.zeros(1, 3), torch.full((1, 3), -2.0))
    wide = Gaussian(torch.zeros(1, 3), torch.zeros(1, 3))
    assert similarity(narrow, wide) > similarity(wide, narrow)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 9, 16), (33, 20, 384)])
def test_pairwise_equals_paired(kind: gaussian.SimilarityKind, shape: tuple[int, int, int]) -> None:
    n, m, dim = shape
    p, q = leaves(draw(n, dim, 4)), leaves(draw(m, dim, 5))
    matrix = pairwise_similarity(p, q, kind)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij")
    paired = similarity(p[i.reshape(-1)], q[j.reshape(-1)], kind).reshape(n, m)
    torch.testing.assert_close(matrix, paired, rtol=1e-10, atol=1e-12)
    weight = draw(n, m, 6).mean
    for ours, theirs in zip(grads((matrix * weight).sum(), p, q), grads((paired * weight).sum(), p, q), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("shift", "log_var"), [(1.0, -5.0), (3.0, -12.0), (1000.0, -1.0), (100.0, 8.0)])
def test_pairwise_kl_stays_within_its_bound_where_the_products_cancel(shift: float, log_var: float) -> None:
    # Half of the rows stand in both sets: their KL is 0, the sum of terms that are not.
    base = draw(12, 384, 7, spread=0.05, log_var=0.5, dtype=torch.float32)
    sign = torch.ones(384)
    sign[::2] = -1
    p = Gaussian(base.mean + shift * sign, base.log_var + log_var)
    q = Gaussian(torch.cat([p.mean[:6], -p.mean[6:]]), torch.cat([p.log_var[:6], p.log_var[6:] + 1]))
    exact = similarity(p[:, None].to(torch.float64), q[None].to(torch.float64))
    ours = pairwise_similarity(p, q)
    assert (ours.double() - exact).abs().max() < 2e-5
    assert ours.max() <= 1
    assert torch.isfinite(ours).all()


def test_without_the_fallback_those_inputs_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    p = draw(12, 384, 7, spread=30.0, log_var=6.0, dtype=torch.float32)
    exact = torch.ones(12)
    assert torch.equal(pairwise_similarity(p, p).diagonal(), exact)
    monkeypatch.setattr(gaussian, "PAIRWISE_TOLERANCE", float("inf"))
    assert (pairwise_similarity(p, p).diagonal() - exact).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_streaming_in_blocks_changes_neither_value_nor_gradient(
    kind: gaussian.SimilarityKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = leaves(draw(10, 24, 8, spread=50.0)), leaves(draw(7, 24, 9, spread=50.0))
    monkeypatch.setattr(gaussian, "PAIRWISE_TOLERANCE", 0.0)  # every entry through the fallback
    whole = pairwise_similarity(p, q, kind)
    expected = grads(whole.square().sum(), p, q)
    monkeypatch.setattr(gaussian, "_BLOCK_ELEMENTS", 400)
    blocks = pairwise_similarity(p, q, kind)
    torch.testing.assert_close(blocks, whole, rtol=0, atol=0)
    for ours, theirs in zip(grads(blocks.square().sum(), p, q), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


numbers = st.floats(-20, 20, allow_nan=False, width=32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_range_and_permutation(rows: list[tuple[float, float, float, float]], random: object) -> None:
    values = torch.tensor(rows, dtype=torch.float64)
    p, q = Gaussian(values[None, :, 0], values[None, :, 1]), Gaussian(values[None, :, 2], values[None, :, 3])
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert (kl_divergence(p, q) >= 0).all()
    for kind in ("kl", "kl-dimwise"):
        value = similarity(p, q, kind)
        # Not positive only where 1 / (1 + KL) leaves the floating-point range.
        assert ((value >= 0) & (value <= 1)).all()
        torch.testing.assert_close(similarity(p[:, order], q[:, order], kind), value, rtol=1e-12, atol=0)


def test_unknown_kind_and_unequal_shapes_are_refused() -> None:
    p = draw(2, 3, 1)
    for function in (similarity, pairwise_similarity):
        with pytest.raises(ValueError, match="cosine"):
            function(p, p, "cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differ in shape"):
        Gaussian(torch.zeros(2, 3), torch.zeros(2, 4))


def test_a_batch_of_gaussians_behaves_like_one() -> None:
    p = draw(5, 3, 1)
    assert len(p) == 5
    assert torch.equal(Gaussian.cat([p[:2], p[2:]]).mean, p.mean)
    assert p.to(torch.float32).log_var.dtype == torch.float32
    torch.testing.assert_close(p.variance.log(), p.log_var)
