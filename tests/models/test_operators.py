"""Operators on embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.data.schema import OPERATIONS, TWO_INPUTS
from pipeline.families.operations.operators import Operators


def test_arithmetic_difference_undoes_fusion() -> None:
    operators = Operators(6, "arithmetic")
    a, b = torch.randn((2, 5, 6), dtype=torch.float64)
    fused = operators("fusion", a, b)
    torch.testing.assert_close(operators("difference", fused, a), b)
    torch.testing.assert_close(operators("difference", fused, b), a)
    assert operators("compression", a) is a
    assert not list(operators.parameters())


def test_an_mlp_is_arithmetic_and_the_papers_network() -> None:
    torch.manual_seed(1)
    operators = Operators(6, "mlp")
    for parameter in operators.parameters():
        nn.init.normal_(parameter)
    a, b = torch.randn(2, 5, 6)
    for operation, inner, plain in (("fusion", 6, a + b), ("difference", 6, a - b), ("compression", 3, a)):
        network: Any = operators.networks[operation]
        first, _, second = network
        x = torch.cat((a, b), 1) if operation != "compression" else a
        expected = plain + (x @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
        found = operators(operation, a, None if operation == "compression" else b)
        torch.testing.assert_close(found, expected)
        assert first.weight.shape == (inner, x.shape[1])
    assert operators("reconstruction", a) is a
    assert sum(isinstance(part, nn.Linear) for part in operators.modules()) == 6


def test_an_mlp_starts_as_arithmetic_and_can_learn() -> None:
    torch.manual_seed(2)
    operators, plain = Operators(6, "mlp"), Operators(6, "arithmetic")
    a, b = torch.randn(2, 5, 6)
    for operation in OPERATIONS:
        inputs = (a, b) if operation in TWO_INPUTS else (a,)
        torch.testing.assert_close(operators(operation, *inputs), plain(operation, *inputs), rtol=0, atol=0)
    sum(operators(name, a, b if name in TWO_INPUTS else None).square().sum() for name in OPERATIONS).backward()
    networks: Any = operators.networks
    for name in ("fusion", "difference", "compression"):
        assert networks[name][2].weight.grad.abs().max() > 0


def test_an_operation_has_its_number_of_inputs() -> None:
    operators = Operators(4, "mlp")
    with pytest.raises(AssertionError):
        operators("fusion", torch.ones(1, 4))
    with pytest.raises(AssertionError):
        operators("compression", torch.ones(1, 4), torch.ones(1, 4))
