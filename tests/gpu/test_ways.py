"""What `bench.gpu` measures against the product computes the same, on each device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gpu import QUICK, Steps
from bench.ways import FLOAT32, NESTED, VARLEN, Way, compiled

WAYS: dict[str, Callable[[torch.device], Way]] = {
    "1 block": lambda _: Way(blocks=1),
    "nested": lambda _: NESTED,
    "float32": lambda _: FLOAT32,
    "compiled": compiled,
}


def gradients(device: torch.device, way: Way) -> dict[str, Tensor]:
    """Of a step without dropout; in bf16 on a GPU, where attention without padding needs it."""
    steps = Steps(device, QUICK, QUICK.small, None, dropout=False)
    steps.encoder.eval()
    for name, value in steps.encoder.named_parameters():
        if name.endswith("query.weight"):
            # With random weights, attention would be nearly equal for all tokens.
            value.data *= 30
    steps.module.bf16 = device.type == "cuda"
    steps.optimizer.step = steps.optimizer.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    steps(way)
    return {name: value.grad for name, value in steps.encoder.named_parameters() if value.grad is not None}


def check(way: Way, device: torch.device) -> None:
    calls = 0

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return call

    ours = gradients(device, Way())
    theirs = gradients(device, replace(way, functions=tuple((*place, counted(function)) for *place, function in way.functions)))
    assert (calls > 0) == bool(way.functions)
    assert ours.keys() == theirs.keys()
    largest = max(float(value.norm()) for value in ours.values())
    for name, value in ours.items():
        difference = float((theirs[name] - value).norm())
        # bf16 has eight binary digits. Biases of keys have a true gradient of zero.
        assert difference <= (0.05 if device.type == "cuda" else 1e-3) * float(value.norm()) + 1e-3 * largest, name


@pytest.mark.parametrize("name", WAYS)
def test_the_gradients_are_those_of_the_product(name: str, device: torch.device) -> None:
    check(WAYS[name](device), device)


@pytest.mark.gpu
def test_the_gradients_of_varlen_attn_are_those_of_the_product(gpu: torch.device) -> None:
    check(VARLEN, gpu)
