"""A project with a corpus, and helpers that run `gausscse encode` on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.load import load_params
from pipeline.inference.bulk_encode import encode_part
from pipeline.inference.bulk_plan import Done, begin, finish, planned
from pipeline.models.encoder import GaussianEncoder
from tests.conftest import ROOT
from tests.stages.running import plain_project

WORDS = ("a", "dog", "cat", "man", "the", "on")
FILES = {"one.parquet": 500, "below/two.parquet": 300, "three.parquet": 40}


def make_project(root: Path, backbone: Path) -> Path:
    """A project with a model in a folder, and a corpus of three files."""
    plain_project(root, {"model.backbone": str(backbone), "model.max_length": 24})
    params = load_params(root / "params.yaml").model
    GaussianEncoder.from_backbone(params, 1).save_pretrained(root / "model")
    r = np.random.default_rng(3)
    number = 0
    for name, rows in FILES.items():
        texts: list[str | None] = [" ".join(r.choice(WORDS, r.integers(1, 6))) for _ in range(rows)]
        if rows > 100:
            texts[5], texts[7], texts[11] = None, "", "dog " * 60
        table = pa.table({"id": np.arange(number, number + rows), "text": texts, "mean": np.zeros(rows)})
        number += rows
        (root / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / "corpus" / name, row_group_size=100)
    return root


def encode_here(
    encoder: GaussianEncoder, source: Path | str, out: Path | str, column: str = "text", keep: Sequence[str] = (), **how: Any
) -> list[Done]:
    """Encode a corpus as the command does, but in this process; `how` are arguments of `planned`."""
    plan = planned(str(source), column, keep, how.pop("model", "model"), encoder.dim, **how)
    done = begin(plan, str(out))
    there = {part.number for part in done}
    done += [encode_part(encoder, str(source), plan, part, str(out)) for part in plan.parts if part.number not in there]
    finish(plan, str(out), done)
    return done


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", "encode", *arguments, "--model", "model", "--column", "text"]


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A part may take longer than Ray Data has patience for (half an hour, if nobody sets it).
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S": "1"}
    return subprocess.run(command(*arguments), cwd=root, env=environment, capture_output=True, text=True, timeout=900)


def contents(folder: Path) -> dict[str, bytes]:
    # A kill may leave hidden ones.
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}
