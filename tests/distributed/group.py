"""Gradients of a global batch by workers of a real gloo group, wherever each of them runs, and how they are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.copies import PLAIN, ROOT

WORKER = ROOT / "tests/distributed/gloo_worker.py"
PAPER: dict[str, Any] = {
    "objective": "ent+con+rev",
    "similarity": "kl",
    "batch": 10,
    "steps": 1,
    "missing": False,
    "same_premise": "keep",
    # Whether the pairs of a premise hold both ways: its number modulo 3 is smaller.
    "two_way": 0,
    "micro_batch": None,
    "neutrals": False,
    "simcse_weight": 0.0,
    "relation_weight": 0.0,
    # It draws differently on each worker.
    "dropout": False,
}
RELATION = {**PAPER, "neutrals": True, "missing": True, "relation_weight": 0.7, "two_way": 1, "batch": 9}
# Ten rows are 5 + 5 and 3 + 3 + 2 + 2; nine are 5 + 4 and 3 + 2 + 2 + 2.
JOBS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "uneven": {**PAPER, "batch": 9},
    "missing": {**PAPER, "missing": True, "objective": "ent+con"},
    "dimwise": {**PAPER, "similarity": "kl-dimwise", "objective": "ent+rev"},
    "ent": {**PAPER, "objective": "ent"},
    "two-way": {**PAPER, "two_way": 1, "batch": 39},
    "simcse": {**PAPER, "objective": "simcse", "missing": True},
    "neutral": {**PAPER, "neutrals": True, "missing": True, "simcse_weight": 0.5, "batch": 9},
    # Rows with their tokens.
    "relation": RELATION,
    "relation, micro-batches": {**RELATION, "micro_batch": 4},
    "neutral simcse": {**PAPER, "neutrals": True, "objective": "simcse", "micro_batch": 4},
    "mask": {**PAPER, "same_premise": "mask", "batch": 39},
    # Alone 27 sentences in seven micro-batches; of four workers one has three and the others two.
    "micro-batches": {**PAPER, "micro_batch": 4, "batch": 9},
    "micro-batches, missing": {**PAPER, "micro_batch": 4, "missing": True, "similarity": "kl-dimwise"},
    # Eleven sentences: 6 + 5 and 3 + 3 + 3 + 2. Runs of three leave sentences without context at the ends of documents.
    "quickthoughts": {**PAPER, "objective": "quickthoughts", "batch": 11, "documents": {"context_size": 2, "run_length": 3}},
    "blocks": {
        **PAPER,
        "objective": "quickthoughts",
        "batch": 19,
        "documents": {"loss": "block", "block_size": 2, "score": "cosine", "direction": "next"},
    },
    "quickthoughts, kl": {
        **PAPER,
        "objective": "quickthoughts",
        "batch": 13,
        "micro_batch": 4,
        "documents": {"score": "kl", "towers": "encoders"},
    },
    # Rows of all four operations, some with the same target; the decoder and the operators have gradients of their own.
    "intersent": {**PAPER, "objective": "intersent", "batch": 11},
    "intersent, micro-batches": {**PAPER, "objective": "intersent", "batch": 9, "micro_batch": 4},
    "cached": {**PAPER, "micro_batch": 2, "dropout": True},
    # Plain SGD: Adam would hide a gradient of the wrong scale.
    "sgd": {**PAPER, "steps": 20, "batch": 9},
    # Of two workers one has fifteen sentences, the other twelve: they must go the same way, or DDP's collectives cross.
    "sgd, one has two micro-batches": {**PAPER, "steps": 3, "batch": 9, "micro_batch": 13},
}
SGD = [name for name, job in JOBS.items() if job["steps"] > 1]


Gradients = dict[str, dict[str, Tensor]]
"""Of each job, by the name of the parameter."""


def gradients(
    where: Sequence[Sequence[str]],
    out: Path,
    store: Path,
    backbone: Path,
    environment: Mapping[str, str] | None = None,
    jobs: Mapping[str, Mapping[str, Any]] = JOBS,
) -> Gradients:
    """What every job comes out as on a worker for each entry of `where`, the command that runs another there."""
    out.mkdir()
    spec = {
        "workers": len(where),
        "rendezvous": str(out / "rendezvous"),
        "params": str(PLAIN),
        "store": str(store),
        "backbone": str(backbone),
        "out": str(out),
        "jobs": jobs,
    }
    processes = [
        subprocess.Popen(
            [*before, sys.executable, str(WORKER), str(rank), json.dumps(spec)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, before in enumerate(where)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)
    return {name: load_file(out / f"{name}.safetensors") for name in jobs}


def assert_same_gradients(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """To 1e-10 of each tensor; keys' biases have a true gradient of zero and are held to an absolute floor."""
    assert ours.keys() == theirs.keys()
    largest = max(float(t.abs().max()) for t in theirs.values())
    assert largest > 1e-3
    for name, expected in theirs.items():
        difference = float((ours[name] - expected).norm())
        assert difference <= 1e-10 * float(expected.norm()) + 1e-13 * largest, (name, difference)


def assert_same_weights(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """After SGD steps."""
    for name, expected in theirs.items():
        difference = float((ours[name] - expected).norm())
        assert difference <= 1e-9 * float(expected.norm()) + 1e-12, (name, difference)
