"""Operators on embeddings."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.data.schema import OPERATIONS, TWO_INPUTS
from pipeline.families.operations.operators import Operators


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
    # The inner width is that of an embedding, for compression half of it.
    assert [networks[name][0].weight.shape for name in ("fusion", "difference", "compression")] == [(6, 12), (6, 12), (3, 6)]
