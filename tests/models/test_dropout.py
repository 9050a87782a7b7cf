from __future__ import annotations

import pytest
import torch

from pipeline.models.dropout import dropout, dropout_add


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-4, 0.999])
def test_share_of_zeros_and_scale_are_those_of_p(p: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1001, dtype=torch.float64)
    y = dropout(x, p)
    zeros = float((y == 0).double().mean())
    assert zeros == pytest.approx(p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5)
    kept = y[y != 0].unique()
    assert len(kept) == 1
    # p is rounded to 1/65,536.
    assert 1 - 1 / kept.item() == pytest.approx(p, abs=1 / 65_536)


def test_elements_that_share_a_draw_are_independent() -> None:
    torch.manual_seed(2)
    gone = (dropout(torch.ones(100_000, 4), 0.3) == 0).float()
    correlation = torch.corrcoef(gone.T) - torch.eye(4)
    assert correlation.abs().max() < 0.015
    neighbours = torch.corrcoef(torch.stack((gone[:-1, 3], gone[1:, 0])))[0, 1]
    assert abs(neighbours) < 0.015


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 1, 3)])
def test_gradient_goes_where_the_value_went(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * gradient)
    residual = torch.randn(shape, dtype=torch.float64)
    torch.manual_seed(3)
    torch.testing.assert_close(dropout_add(x, residual, 0.4), residual + y)


def test_nothing_is_drawn_at_zero_and_a_sum_keeps_its_precision() -> None:
    x, residual = torch.randn(64, 8).to(torch.bfloat16), torch.randn(64, 8)
    before = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout_add(x, x, 0.0), x + x)
    assert torch.equal(torch.get_rng_state(), before)
    assert dropout_add(x, residual, 0.1).dtype == torch.float32
