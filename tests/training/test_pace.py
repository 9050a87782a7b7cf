from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from pipeline.models.encoder import GaussianEncoder
from pipeline.training import pace
from pipeline.training.pace import Pace, peak_tflops, weights_of
from tests.trial_of import tiny_encoder

CPU = torch.device("cpu")
# Two layers of hidden size 32 and inner size 64, and the LayerNorm of the embeddings. Heads multiply once a sentence.
LAYER = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 2 * 2 * 32
WEIGHTS = 2 * LAYER + 2 * 32


@pytest.fixture
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def test_mfu_is_six_operations_for_each_weight_and_token(encoder: GaussianEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [weights_of(tower) for tower in encoder.towers] == [WEIGHTS]
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(pace, "peak_tflops", lambda name, *, bf16: 0.001)
    run = Pace(encoder.towers, CPU, "fp32", bf16=False)
    run.begin()
    for _ in range(4):
        run.count(rows=8, tokens=1000, gathered=0)
    clock[0] += 5.0
    run.set_aside(3.0)
    speed = run.now()
    assert speed.rows_per_second == 16
    assert speed.tflops == pytest.approx(6 * WEIGHTS * 4000 / 2 / 1e12)
    assert speed.mfu == pytest.approx(100 * 6 * WEIGHTS * 4000 / 2 / 1e12 / 0.001)


@pytest.mark.parametrize(
    ("name", "bf16", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", True, 312.0),
        ("Tesla V100-SXM2-16GB", False, 15.7),
        # Not in the table, whatever their names begin with.
        ("NVIDIA A10G", True, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", True, None),
    ],
)
def test_peaks_are_those_of_the_data_sheets_or_none(name: str, bf16: bool, peak: float | None) -> None:
    assert peak_tflops(name, bf16=bf16) == peak
