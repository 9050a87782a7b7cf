"""The same tests on the CPU, always, and on a GPU, where there is one (`make test-gpu`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where a test computes."""
    return usable(request.param)


@pytest.fixture
def gpu() -> torch.device:
    """For tests that only a GPU can answer; they have the marker `gpu` themselves."""
    return usable("cuda")


@pytest.fixture(autouse=True)
def no_tensors_are_left() -> Iterator[None]:
    """Each test has the GPU's memory to itself."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def usable(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        if os.environ.get("GAUSSCSE_REQUIRE_GPU"):
            pytest.fail("GAUSSCSE_REQUIRE_GPU is set, and torch finds no GPU")
        pytest.skip("no GPU")
    return torch.device(name)
