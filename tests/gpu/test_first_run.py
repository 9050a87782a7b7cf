"""The first run after `make setup`, as a user starts it: `dvc repro` to the evaluation of two trained seeds, on a device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from pipeline.distributed.precision import has_bf16
from pipeline.training.pace import device_name
from tests.stages.conftest import small_project
from tests.stages.running import repro, set_keys, stages_run

# Minutes on a CPU, where tests/stages/test_repro.py has the whole pipeline.
# Weekly on the CPU, where other pipelines run; always with make test-gpu.
pytestmark = [pytest.mark.faults, pytest.mark.weekly]


def test_dvc_repro_trains_and_evaluates_on_the_device(device: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    root = small_project(tmp_path, tiny_backbone)
    set_keys(root, {"cluster.device": device.type}, "execution.yaml")
    said = repro(root, "evaluate")
    assert stages_run(said) == ["prepare", "tokenize", "tune", "train", "evaluate"]
    assert re.search(rf"\d trials? of 1 worker on {device.type}, ", said)
    timings = [json.loads(file.read_text())["timing"] for file in (root / ".gausscse/trials").glob("*/trial.json")]
    assert timings
    assert {timing["device"] for timing in timings} == {device_name(device)}
    if device.type == "cuda":
        assert {timing["precision"] for timing in timings} == {"bf16" if has_bf16(device) else "fp32"}
    assert json.loads((root / "results/evaluate/metrics.json").read_text())
