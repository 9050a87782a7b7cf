"""The loss of workers together is the loss of one process on the same batch: gradients tensor by tensor, and SGD steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from safetensors.torch import load_file
from store import random_stores
from torch import Tensor

WORKER = ROOT / "tests/distributed/gloo_worker.py"
PAPER: dict[str, Any] = {
    "objective": "ent+con+rev",
    "similarity": "kl",
    "batch": 10,
    "steps": 1,
    "missing": False,
    "same_premise": "keep",
    "micro_batch": None,
    "neutrals": False,
    "simcse_weight": 0.0,
    "reverse_weight": 1.0,
    # It draws differently on each worker.
    "dropout": False,
}
# Ten rows are 5 + 5 and 3 + 3 + 2 + 2; nine are 5 + 4 and 3 + 2 + 2 + 2.
JOBS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "uneven": {**PAPER, "batch": 9},
    "missing": {**PAPER, "missing": True, "objective": "ent+con"},
    "dimwise": {**PAPER, "similarity": "kl-dimwise", "objective": "ent+rev"},
    "ent": {**PAPER, "objective": "ent"},
    "simcse": {**PAPER, "objective": "simcse", "missing": True},
    "neutral": {**PAPER, "neutrals": True, "missing": True, "simcse_weight": 0.5, "reverse_weight": 5.0, "batch": 9},
    "neutral simcse": {**PAPER, "neutrals": True, "objective": "simcse", "micro_batch": 4},
    "mask": {**PAPER, "same_premise": "mask", "batch": 39},
    # Alone 27 sentences in seven micro-batches; of four workers one has three and the others two.
    "micro-batches": {**PAPER, "micro_batch": 4, "batch": 9},
    "micro-batches, missing": {**PAPER, "micro_batch": 4, "missing": True, "similarity": "kl-dimwise"},
    "cached": {**PAPER, "micro_batch": 2, "dropout": True},
    # Plain SGD: Adam would hide a gradient of the wrong scale.
    "sgd": {**PAPER, "steps": 20, "batch": 9},
    # Of two workers one has fifteen sentences, the other twelve: they must go the same way, or DDP's collectives cross.
    "sgd, one has two micro-batches": {**PAPER, "steps": 3, "batch": 9, "micro_batch": 13},
}
SGD = [name for name, job in JOBS.items() if job["steps"] > 1]


Results = dict[int, dict[str, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Results:
    """Every job by one, two and four real gloo processes."""
    base = tmp_path_factory.mktemp("gloo")
    store, _ = random_stores(base / "stores")
    found: Results = {}
    for workers in (1, 2, 4):
        out = base / str(workers)
        out.mkdir()
        spec = {
            "workers": workers,
            "rendezvous": str(out / "rendezvous"),
            "params": str(ROOT / "params.yaml"),
            "store": str(store),
            "backbone": str(tiny_backbone),
            "out": str(out),
            "jobs": JOBS,
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, str(WORKER), str(rank), json.dumps(spec)], env=environment, stderr=subprocess.PIPE, text=True
            )
            for rank in range(workers)
        ]
        errors = [process.communicate(timeout=300)[1] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(errors)
        found[workers] = {name: load_file(out / f"{name}.safetensors") for name in JOBS}
    return found


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", [name for name in JOBS if name not in (*SGD, "cached")])
def test_gradients_are_those_of_one_process(results: Results, job: str, workers: int) -> None:
    ours, theirs = results[workers][job], results[1][job]
    assert ours.keys() == theirs.keys()
    largest = max(float(t.abs().max()) for t in theirs.values())
    assert largest > 1e-3
    for name, expected in theirs.items():
        difference = float((ours[name] - expected).norm())
        # Keys' biases have a true gradient of zero: held to an absolute floor.
        assert difference <= 1e-10 * float(expected.norm()) + 1e-13 * largest, (name, difference)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gradient_caching_repeats_the_plain_step_with_its_dropout(results: Results, workers: int) -> None:
    found = results[workers]["cached"]
    names = [name for name in found if not name.startswith("plain.")]
    largest = max(float(found[name].abs().max()) for name in names)
    for name in names:
        expected = found[f"plain.{name}"]
        assert float((found[name] - expected).norm()) <= 1e-10 * float(expected.norm()) + 1e-13 * largest, name


@pytest.mark.parametrize("job", ["micro-batches", "mask"])
def test_those_jobs_differ_only_where_they_should(results: Results, job: str) -> None:
    same = {"micro-batches": "uneven", "mask": "paper"}[job]
    ours, theirs = results[1][job]["mean_head.weight"], results[1][same]["mean_head.weight"]
    assert (float((ours - theirs).norm()) < 1e-10 * float(theirs.norm())) == (job == "micro-batches")


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", SGD)
def test_sgd_steps_lead_to_the_same_weights(results: Results, job: str, workers: int) -> None:
    for name, expected in results[1][job].items():
        difference = float((results[workers][job][name] - expected).norm())
        assert difference <= 1e-9 * float(expected.norm()) + 1e-12, (name, difference)
