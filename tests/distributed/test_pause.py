"""Two workers, one of which is asked to pause: both end after the same step, and go on as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from store import random_stores

from pipeline.config import load_params
from pipeline.data.tokens import digest
from pipeline.files import read_json
from pipeline.trial import OUTCOME, Trial

pytestmark = pytest.mark.faults


def test_all_workers_pause_after_the_step_at_which_the_first_is_asked(tiny_backbone: Path, tmp_path: Path) -> None:
    stores = random_stores(tmp_path)
    p = load_params(ROOT / "params.yaml")
    trial = Trial(
        model=p.model.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24}),
        objective=p.objective,
        train=p.train.model_copy(update={"eval_every": 4, "precision": "fp32", "epochs": 2}),
        learning_rate=1e-3,
        batch_size=8,
        seed=3,
        train_tokens=digest(stores[0]),
        dev_tokens=digest(stores[1]),
    )
    spec = {"trial": trial.model_dump(mode="json"), "train": str(stores[0]), "dev": str(stores[1])}

    def both(name: str, pause: int | None) -> list[str]:
        return run({**spec, "folder": str(tmp_path / name), "pause": pause, "rendezvous": str(tmp_path / f"{name}-{pause}")})

    (tmp_path / "whole").mkdir()
    (tmp_path / "paused").mkdir()
    assert both("whole", None) == ["ended", "ended"]
    assert both("paused", 6) == ["paused", "paused"]
    assert read_json(tmp_path / "paused/latest/state.json")["step"] == 6
    assert both("paused", None) == ["ended", "ended"]
    assert read_json(tmp_path / "paused" / OUTCOME)["outcome"] == read_json(tmp_path / "whole" / OUTCOME)["outcome"]
    weights = [(tmp_path / name / "best/model.safetensors").read_bytes() for name in ("whole", "paused")]
    assert weights[0] == weights[1]


def run(spec: dict[str, Any]) -> list[str]:
    command = [sys.executable, str(ROOT / "tests/distributed/training_worker.py")]
    workers = [
        subprocess.Popen(
            [*command, str(rank), json.dumps(spec)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=120)[0].strip() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]
    return said
