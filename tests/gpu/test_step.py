"""A training step on a device: losses and gradients of every objective, bf16, gradient caching, and what the host waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.training import trainer
from pipeline.training.trainer import train
from tests.copies import PLAIN
from tests.distributed.gloo_worker import run
from tests.distributed.group import JOBS, SGD
from tests.store import random_stores
from tests.training.runs import make_trial
from tests.trial_of import folder_at

ONE_STEP = [name for name in JOBS if name not in (*SGD, "cached")]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Any]:
    store, _ = random_stores(tmp_path_factory.mktemp("stores"))
    return {"params": str(PLAIN), "store": str(store), "backbone": str(tiny_backbone), "losses": True}


@pytest.fixture(scope="module")
def exact(spec: dict[str, Any]) -> Mapping[str, Mapping[str, Tensor]]:
    """Losses and gradients on the CPU in float64."""
    return {job: run(JOBS[job], spec, 1) for job in ONE_STEP}


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """As the product: no TF32."""
    assert not torch.backends.cuda.matmul.allow_tf32
    yield


@pytest.mark.parametrize("job", ONE_STEP)
def test_loss_and_gradients_are_those_of_the_cpu_in_float64(
    job: str, device: torch.device, spec: dict[str, Any], exact: Mapping[str, Mapping[str, Tensor]]
) -> None:
    ours = run(JOBS[job], {**spec, "device": device, "dtype": "float32"}, 1)
    assert_near(ours, exact[job], 1e-5, 1e-3)


@pytest.mark.parametrize("job", ["paper", "simcse", "quickthoughts", "intersent"])
def test_the_loss_in_bf16_is_near(
    job: str, device: torch.device, spec: dict[str, Any], exact: Mapping[str, Mapping[str, Tensor]]
) -> None:
    ours = run(JOBS[job], {**spec, "device": device, "dtype": "float32", "bf16": True}, 1)
    expected = exact[job]["loss"]
    difference = float((ours["loss"].cpu().double() - expected).abs() / expected)
    # bf16 has eight binary digits. No difference at all would mean that it was not used.
    assert 1e-7 < difference < 0.02
    assert all(value.dtype == torch.float32 for value in ours.values())


def test_gradient_caching_repeats_the_plain_step_with_its_dropout(device: torch.device, spec: dict[str, Any]) -> None:
    found = run(JOBS["cached"], {**spec, "device": device, "dtype": "float32", "losses": False}, 1)
    names = [name for name in found if not name.startswith("plain.")]
    assert_near({name: found[name] for name in names}, {name: found[f"plain.{name}"] for name in names}, 1e-5, 1e-4)


def assert_near(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], loss: float, gradient: float) -> None:
    """By the norm of each tensor. Biases of keys have a true gradient of zero and are held to a floor."""
    assert ours.keys() == theirs.keys()
    largest = max(float(value.norm()) for name, value in theirs.items() if name != "loss")
    for name, value in theirs.items():
        difference = float((ours[name].cpu().double() - value.cpu().double()).norm())
        allowed = loss * float(value.norm()) if name == "loss" else gradient * float(value.norm()) + 1e-5 * largest
        assert difference <= allowed, (name, difference, allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"micro_batch": 5}, {"same_premise": "mask"}])
def test_the_host_never_waits_in_a_step(
    changes: dict[str, Any], gpu: torch.device, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_never_waits(gpu, tiny_backbone, tmp_path, monkeypatch, **changes)


def assert_never_waits(
    gpu: torch.device, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> None:
    """torch raises an error wherever the host would wait, from the third step on; the first ones reserve memory."""
    stores = random_stores(tmp_path / "stores")
    step, steps = trainer._Run._step, 0

    def watched(self: Any, number: int) -> Any:
        nonlocal steps
        torch.cuda.set_sync_debug_mode("error" if number >= 2 else "default")
        try:
            done = step(self, number)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        steps += number >= 2
        return done

    monkeypatch.setattr(trainer._Run, "_step", watched)
    trial = make_trial(backbone, stores, **changes)
    outcome = train(*stores, folder_at(trial, tmp_path / "trial"), lambda _: None, gpu)
    assert steps == outcome.total_steps - 2 == 8


@pytest.mark.gpu
def test_a_step_that_waits_is_an_error(gpu: torch.device) -> None:
    """What the test above relies on."""
    value = torch.ones((), device=gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            value.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
