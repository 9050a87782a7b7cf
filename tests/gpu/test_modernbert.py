"""A ModernBERT on a device: padded sentences in float32, and in bf16 transformers' attention without padding, if it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.data.token_store import open_store
from pipeline.models import flash
from tests.copies import PLAIN
from tests.distributed.gloo_worker import run
from tests.distributed.group import JOBS
from tests.gpu.test_step import assert_near, assert_never_waits
from tests.store import random_stores
from tests.tiny import MODERNBERT, make_tiny_backbone
from tests.trial_of import tiny_encoder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_backbone(tmp_path_factory.mktemp("backbone") / "modernbert", **MODERNBERT)


@pytest.fixture
def spec(backbone: Path, tmp_path: Path) -> dict[str, Any]:
    store, _ = random_stores(tmp_path / "stores")
    return {"params": str(PLAIN), "store": str(store), "backbone": str(backbone), "losses": True}


@pytest.mark.parametrize("job", ["paper", "micro-batches"])
def test_loss_and_gradients_are_those_of_the_cpu_in_float64(job: str, device: torch.device, spec: dict[str, Any]) -> None:
    ours = run(JOBS[job], {**spec, "device": device, "dtype": "float32"}, 1)
    assert_near(ours, run(JOBS[job], spec, 1), 1e-5, 1e-3)


def test_a_store_is_encoded_as_on_the_cpu(device: torch.device, backbone: Path, tmp_path: Path) -> None:
    encoder, store = tiny_encoder(backbone), open_store(random_stores(tmp_path, sentences=500)[0])
    rows = np.argsort(store.lengths, kind="stable")
    one_by_one = encoder.encode_rows(store, rows, batch_size=1)
    found = encoder.to(device).encode_rows(store, rows).to("cpu")
    torch.testing.assert_close(found.mean, one_by_one.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.log_var, one_by_one.log_var, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("job", ["paper", "micro-batches"])
def test_without_padding_gradients_are_those_of_padded_sentences(
    job: str, gpu: torch.device, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flash_attn", reason="the package flash-attn is not installed")
    states, calls = flash.states, 0

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return states(*given)

    monkeypatch.setattr(flash, "states", counted)
    asked = {**spec, "device": gpu, "dtype": "float32", "bf16": True}
    ours = run(JOBS[job], asked, 1)
    assert calls
    monkeypatch.setattr(flash, "takes", lambda *_: False)
    # bf16 has eight binary digits.
    assert_near(ours, run(JOBS[job], asked, 1), 0.02, 0.05)


@pytest.mark.gpu
def test_without_padding_the_host_never_waits_in_a_step(
    gpu: torch.device, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flash_attn", reason="the package flash-attn is not installed")
    assert_never_waits(gpu, backbone, tmp_path, monkeypatch, precision="bf16")
