"""Encodes the parts of a corpus on all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pipeline.cluster.session import Session
from pipeline.cluster.tasks import run_tasks
from pipeline.inference.bulk_encode import encode_part
from pipeline.inference.bulk_plan import Done, Part, Plan
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import Engine
from pipeline.storage.object_store import found


def encode_parts(
    model: Path, source: str, plan: Plan, pending: Sequence[Part], out: str, on: Session, engine: Engine = "torch"
) -> Iterator[Done]:
    """Encode parts (`run_tasks`); yields each part once its file is written, in any order.

    Raises:
        UserError: as there, or a part cannot be read, encoded or written.
        RunError: as there.
    """
    load: dict[str, Any] = {"model": on.share(model), "threads": on.params.threads(1), "use_gpu": on.use_gpu, "engine": engine}
    fixed = {"plan": plan.for_a_task(), "source": source, "out": out, "load": load}
    items = {f"{part.file}: rows {part.first_row} to {part.first_row + part.rows - 1}": asdict(part) for part in pending}
    for _, done in run_tasks(_encode, items, fixed, on, f"{source}: cannot be encoded"):
        yield Done(**done)


def _encode(*, plan: Plan, source: str, out: str, load: dict[str, Any], **part: Any) -> dict[str, Any]:
    return asdict(encode_part(_encoder(**load), source, plan, Part(**part), out))


@cache
def _encoder(model: str, threads: int, use_gpu: bool, engine: Engine) -> GaussianEncoder:
    torch.set_num_threads(max(1, threads))
    return GaussianEncoder.from_pretrained(found(model), engine).to_device("cuda" if use_gpu else "cpu")
