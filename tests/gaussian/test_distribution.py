from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl

from pipeline.gaussian import distribution, pairwise
from pipeline.gaussian.distribution import Gaussian, kl_divergence, pairwise_similarity, similarity


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


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of an entry, relative to that entry."""
    return float(((ours - theirs).abs() / theirs.abs().clamp_min(1e-300)).max().detach())


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("dim", [1, 7, 384, 1024])
@pytest.mark.parametrize(("spread", "log_var"), [(1.0, 1.0), (1000.0, 3.0), (1000.0, 20.0), (1.0, 20.0), (0.0, 2.0), (30.0, 0.0)])
def test_kl_and_its_gradient_equal_torch_distributions(n: int, dim: int, spread: float, log_var: float) -> None:
    p, q = leaves(draw(n, dim, 1, spread, log_var)), leaves(draw(n, dim, 2, spread, log_var))
    assert relative(kl_divergence(p, q), oracle_kl(p, q)) < 1e-10
    for ours, theirs in zip(grads(kl_divergence(p, q).sum(), p, q), grads(oracle_kl(p, q).sum(), p, q), strict=True):
        # A gradient entry is a difference of two terms, which the oracle cancels too: relative to the larger entries.
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * float(theirs.abs().mean()))


def decimal_kl(p: Gaussian, q: Gaussian) -> tuple[Decimal, list[list[Decimal]]]:
    """KL of two Gaussians (D,) and its gradient with respect to μ_p, ℓ_p, μ_q, ℓ_q, in 60 digits."""
    total, gradient = Decimal(0), [[], [], [], []]
    with localcontext() as context:
        context.prec = 60
        for row in zip(*(t.tolist() for t in (p.mean, p.log_var, q.mean, q.log_var)), strict=True):
            p_mean, p_log_var, q_mean, q_log_var = map(Decimal, row)
            ratio, precision, m = (p_log_var - q_log_var).exp(), (-q_log_var).exp(), p_mean - q_mean
            total += (ratio - 1 - p_log_var + q_log_var + m * m * precision) / 2
            for into, value in zip(
                gradient, (m * precision, (ratio - 1) / 2, -m * precision, (1 - ratio - m * m * precision) / 2), strict=True
            ):
                into.append(value)
    return total, gradient


@pytest.mark.parametrize("apart", [1e-12, 1e-9, 1e-6, 1e-4, 0.01, 0.0299, 0.0301, 0.5, 20.0])
@pytest.mark.parametrize("base", [-20.0, 0.0, 20.0])
def test_nearly_equal_gaussians_keep_ten_digits(apart: float, base: float) -> None:
    # torch.distributions is no oracle here: it computes exp(d) − 1 − d as it is written.
    g = torch.Generator().manual_seed(4)
    draws = torch.randn(4, 9, generator=g, dtype=torch.float64)
    p = leaves(Gaussian(draws[0], base + draws[1].clamp(-0.5, 0.5)))
    q = leaves(Gaussian(p.mean.detach() + apart * draws[2], p.log_var.detach() + apart * draws[3]))
    total, gradient = decimal_kl(p, q)
    value = kl_divergence(p, q)
    assert abs(Decimal(value.item()) / total - 1) < Decimal("1e-10")
    for ours, exact in zip(grads(value, p, q), gradient, strict=True):
        # What is known only through inputs rounded to 16 digits (μ_p − μ_q of μ about 1) keeps what those have.
        largest = max(abs(e) for e in exact)
        for mine, theirs in zip(ours.tolist(), exact, strict=True):
            assert abs(Decimal(mine) - theirs) <= Decimal("1e-10") * largest


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("dim", [1, 384, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_gaussians_have_similarity_one_and_no_gradient(
    kind: distribution.SimilarityKind, dim: int, dtype: torch.dtype
) -> None:
    p = leaves(draw(4, dim, 3, spread=1000.0, log_var=20.0, dtype=dtype))
    q = leaves(p)
    value = similarity(p, q, kind)
    assert torch.equal(value, torch.ones(4, dtype=dtype))
    assert all(torch.equal(g, torch.zeros_like(g)) for g in grads(value.sum(), p, q))


def test_similarity_is_the_paper_s_and_the_released_code_s() -> None:
    # By hand: KL of N(0, 1) from N(1, 1) is 1/2, of N(0, 1) from N(0, e²) is (e⁻² − 1 + 2) / 2.
    p = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    q = Gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    first, second = 0.5, (torch.e**-2 + 1) / 2
    assert similarity(p, q).item() == pytest.approx(1 / (1 + first + second))
    assert similarity(p, q, "kl-dimwise").item() == pytest.approx((1 / (1 + first) + 1 / (1 + second)) / 2)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 9, 16), (33, 20, 384)])
def test_pairwise_equals_paired(kind: distribution.SimilarityKind, shape: tuple[int, int, int]) -> None:
    n, m, dim = shape
    p, q = leaves(draw(n, dim, 4)), leaves(draw(m, dim, 5))
    matrix = pairwise_similarity(p, q, kind)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij")
    paired = similarity(p[i.reshape(-1)], q[j.reshape(-1)], kind).reshape(n, m)
    torch.testing.assert_close(matrix, paired, rtol=1e-10, atol=1e-12)
    weight = draw(n, m, 6).mean
    for ours, theirs in zip(grads((matrix * weight).sum(), p, q), grads((paired * weight).sum(), p, q), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def plain_kl(p: Gaussian, q: Gaussian) -> Tensor:
    """The pairwise KL by matrix products as one would write it: no shift, no float64, no second look."""
    precision = torch.exp(-q.log_var)
    return 0.5 * (
        (p.log_var.exp() + p.mean.square()) @ precision.T
        - 2 * p.mean @ (q.mean * precision).T
        + (q.mean.square() * precision + q.log_var).sum(-1)
        - p.mean.shape[1]
        - p.log_var.sum(-1, keepdim=True)
    )


# How far the diagonal, whose KL is 0, is off by the plain products; which digits are lost differs from one processor to the next.
CANCELLING = [
    pytest.param(1.0, -6.0, 1e-3, id="by a thousandth"),
    pytest.param(3.0, -12.0, 10.0, id="by ten"),
    pytest.param(1000.0, -20.0, 1e3, id="by everything"),
]


@pytest.mark.parametrize(("shift", "log_var", "plain_error"), CANCELLING)
@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_pairwise_is_right_where_plain_products_are_far_off(
    kind: distribution.SimilarityKind, shift: float, log_var: float, plain_error: float
) -> None:
    # Half of the rows stand in both sets: their KL is 0, the sum of terms that are not. The signs keep a shift from helping.
    base = draw(12, 384, 7, spread=0.05, log_var=0.5, dtype=torch.float32)
    sign = draw(12, 384, 8, dtype=torch.float32).mean.sign()
    p = Gaussian(base.mean + shift * sign, base.log_var + log_var)
    q = Gaussian(torch.cat([p.mean[:6], -p.mean[6:]]), torch.cat([p.log_var[:6], p.log_var[6:] + 1]))
    assert plain_kl(p, q).diagonal()[:6].abs().max() > plain_error
    exact = similarity(p[:, None].to(torch.float64), q[None].to(torch.float64), kind)
    ours = pairwise_similarity(p, q, kind)
    assert (ours.double() - exact).abs().max() < 1e-5
    assert ours.max() <= 1
    assert (ours >= 0).all()


@pytest.mark.parametrize("scale", [1e6, 1e9])
def test_entries_beyond_the_bound_are_computed_again(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Means so far apart that the products lose the nearby pairs in float64 too.
    near = draw(6, 64, 7, spread=0.1, log_var=0.1)
    sign = draw(6, 64, 8).mean.sign()
    p, q = (Gaussian(g.mean + scale * sign, g.log_var) for g in (near, draw(6, 64, 9, spread=0.1, log_var=0.1)))
    # The nearby pairs are those of rows i and i + 2, not the diagonal.
    p, q = leaves(p), leaves(q[torch.arange(6).roll(2)])
    exact = similarity(p[:, None], q[None])
    torch.testing.assert_close(pairwise_similarity(p, q), exact, rtol=0, atol=1e-5)
    weight = draw(6, 6, 3).mean
    ours = grads((pairwise_similarity(p, q) * weight).sum(), p, q)
    for mine, theirs in zip(ours, grads((exact * weight).sum(), p, q), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    monkeypatch.setattr(pairwise, "TOLERANCE", float("inf"))
    assert (pairwise_similarity(p, q) - exact).abs().max() > 1e-5


@pytest.mark.parametrize(("offset", "level"), [(1e7, 0.0), (0.0, 3000.0)])
def test_what_all_gaussians_have_in_common_costs_no_second_look(
    offset: float, level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shifting and scaling both sets in the same way changes no KL: after that the products are exact enough.
    p, q = (Gaussian(g.mean + offset, g.log_var + level) for g in (draw(6, 64, 7), draw(5, 64, 8)))
    exact = similarity(p[:, None], q[None])

    def second_look(*_: Tensor) -> Tensor:
        raise AssertionError("computed again")

    monkeypatch.setattr(pairwise, "kl_terms", second_look)
    torch.testing.assert_close(pairwise_similarity(p, q), exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("tolerance", [pairwise.TOLERANCE, -1.0])
def test_all_tensors_are_made_on_the_device_of_the_inputs(
    kind: distribution.SimilarityKind, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tensor made without a device goes to the default one, which here computes nothing.
    monkeypatch.setattr(pairwise, "TOLERANCE", tolerance)
    p, q = leaves(draw(4, 9, 1)), leaves(draw(3, 9, 2))
    expected = pairwise_similarity(p, q, kind)
    with torch.device("meta"):
        found = pairwise_similarity(p, q, kind)
        kept: Any = found.grad_fn
        assert {tensor.device.type for tensor in kept.saved_tensors} == {"cpu"}
        ours = grads(found.sum(), p, q)
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(ours, grads(expected.sum(), p, q), strict=True))


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_extreme_inputs_never_give_nan(kind: distribution.SimilarityKind) -> None:
    p = leaves(draw(9, 33, 5, spread=1000.0, log_var=20.0, dtype=torch.float32))
    q = leaves(draw(8, 33, 6, spread=1000.0, log_var=80.0, dtype=torch.float32))
    value = pairwise_similarity(p, q, kind)
    assert torch.isfinite(value).all()
    assert ((value >= 0) & (value <= 1)).all()
    assert all(torch.isfinite(g).all() for g in grads(value.sum(), p, q))


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("tolerance", [pairwise.TOLERANCE, -1.0])
def test_blocks_change_neither_value_nor_gradient(
    kind: distribution.SimilarityKind, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tolerance below zero sends every entry the second way.
    monkeypatch.setattr(pairwise, "TOLERANCE", tolerance)
    p, q = leaves(draw(10, 24, 8)), leaves(draw(7, 24, 9))
    whole = pairwise_similarity(p, q, kind)
    expected = grads(whole.square().sum(), p, q)
    monkeypatch.setattr(pairwise, "_CPU_BLOCK", 60)
    monkeypatch.setattr(pairwise, "_MATRIX_BLOCK", 20)
    blocks = pairwise_similarity(p, q, kind)
    torch.testing.assert_close(blocks, whole, rtol=1e-14, atol=0)
    for ours, theirs in zip(grads(blocks.square().sum(), p, q), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_autocast_takes_no_digits_from_the_pairwise_forms(kind: distribution.SimilarityKind) -> None:
    p, q = (draw(6, 48, seed, dtype=torch.float32) for seed in (1, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = pairwise_similarity(p, q, kind)
    assert torch.equal(inside, pairwise_similarity(p, q, kind))
    assert pairwise_similarity(p.to(torch.bfloat16), q.to(torch.bfloat16), kind).dtype == torch.float32


means, log_vars = st.floats(-1000, 1000, width=32), st.floats(-20, 20, width=32)
dimensions = st.lists(st.tuples(means, log_vars, means, log_vars), min_size=1, max_size=6)


def pair_of(rows: list[tuple[float, float, float, float]]) -> tuple[Gaussian, Gaussian]:
    values = torch.tensor(rows, dtype=torch.float64)
    return Gaussian(values[None, :, 0], values[None, :, 1]), Gaussian(values[None, :, 2], values[None, :, 3])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(dimensions, st.randoms(use_true_random=False))
def test_range_permutation_and_pairwise(rows: list[tuple[float, float, float, float]], random: object) -> None:
    p, q = pair_of(rows)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert (kl_divergence(p, q) >= 0).all()
    for kind in ("kl", "kl-dimwise"):
        value = similarity(p, q, kind)
        assert ((value > 0) & (value <= 1)).all()
        torch.testing.assert_close(similarity(p[:, order], q[:, order], kind), value, rtol=1e-12, atol=0)
        torch.testing.assert_close(pairwise_similarity(p, q, kind)[0], value, rtol=1e-9, atol=1e-5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(dimensions)
def test_the_two_directions_are_equal_only_where_theory_says_so(rows: list[tuple[float, float, float, float]]) -> None:
    p, q = pair_of(rows)
    # KL(p‖q) − KL(q‖p) = Σ sinh(d) − d + m²·(λ_q − λ_p) / 2: an identity that the two directions must satisfy together.
    d, m = p.log_var - q.log_var, p.mean - q.mean
    odd = (torch.sinh(d) - d + m.square() * (torch.exp(-q.log_var) - torch.exp(-p.log_var)) / 2).sum(-1)
    there, back = kl_divergence(p, q), kl_divergence(q, p)
    torch.testing.assert_close(there - back, odd, rtol=1e-9, atol=float(1e-12 * (there + back)) + 1e-15)


def test_unknown_kind_and_unequal_shapes_are_refused() -> None:
    p = draw(2, 3, 1)
    for function in (similarity, pairwise_similarity):
        with pytest.raises(ValueError, match="cosine"):
            function(p, p, "cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differ in shape"):
        Gaussian(torch.zeros(2, 3), torch.zeros(2, 4))
