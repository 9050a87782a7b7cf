"""Encodes the parts of a corpus on all nodes (Ray Data)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import ray.data
import torch
from ray.exceptions import RayError

from pipeline.cluster.failures import reason_of, shortage_in
from pipeline.cluster.memory import wait_for_memory
from pipeline.cluster.ray_private import attempt_of_task
from pipeline.cluster.session import Session, check_this_node
from pipeline.inference.bulk_encode import encode_part
from pipeline.inference.bulk_plan import Done, Part, Plan
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import Engine
from pipeline.storage.object_store import found
from pipeline.utils.errors import TransientStorageError, UserError

_KEPT = "what is encoded is kept, the next run goes on with the rest"


def encode_parts(
    model: Path, source: str, plan: Plan, pending: Sequence[Part], out: str, on: Session, engine: Engine = "torch"
) -> Iterator[Done]:
    """Encode parts, as many at a time as there is room for workers; yields each part once its file is written, in any order.

    If the process of a part dies, another process encodes the part again, up to `cluster.max_failures` times. After a
    `TransientStorageError` the part is tried again, equally often, and after a lack of memory once there is memory again.

    Raises:
        UserError: a part cannot be read, encoded or written, more than `cluster.max_failures` of its processes died, a node has
            other package versions, or a GPU that torch cannot use.
        RunError: a node has no memory after `cluster.placement_timeout_s`.
    """
    context = ray.data.DataContext.get_current()
    # We print our own progress lines.
    context.enable_progress_bars = False
    # The task pool below already limits the parts at a time. For three minutes, Ray Data's own budget counts the resources of a
    # killed training run as taken. It would then run one part at a time on a free cluster.
    context.op_resource_reservation_enabled = False
    # By default a run ends after half an hour without a finished part. On CPUs a part may take longer.
    context.execution_no_progress_timeout_s = -1
    # The caller reports an error, in one line.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    load: dict[str, Any] = {"model": on.share(model), "threads": on.params.threads(1), "use_gpu": on.use_gpu, "engine": engine}
    tries = on.params.max_failures + 1
    fixed = {"plan": plan.for_a_task(), "source": source, "out": out, "load": load, "versions": on.versions, "tries": tries}
    left = {part.number: asdict(part) for part in pending}
    task: Any = _encode
    for attempt in range(1, tries + 1):
        dataset = ray.data.from_items([part for _, part in sorted(left.items())], override_num_blocks=len(left))
        encoded = dataset.map(
            task,
            fn_kwargs=fixed,
            num_cpus=on.params.reserved_cpus,
            num_gpus=int(on.use_gpu),
            compute=ray.data.TaskPoolStrategy(min(len(left), on.params.workers * on.concurrent)),
            # A process keeps its loaded model for the next part. By default, a process with a GPU would end after each part.
            max_calls=0,
        )
        try:
            for row in encoded.iter_rows():
                if row["error"]:
                    raise UserError(row["error"])
                done = Done(**json.loads(row["done"]))
                del left[done.number]
                yield done
            return
        except RayError as error:
            if shortage_in(error) is None or attempt == tries:
                raise UserError(f"{source}: cannot be encoded: {reason_of(error)}") from None
            wait_for_memory(error, on.params)


def _encode(
    row: dict[str, Any], *, plan: Plan, source: str, out: str, load: dict[str, Any], versions: dict[str, str] | None, tries: int
) -> dict[str, str]:
    """Errors are returned, not raised: Ray Data would print pages of its own output above a raised error."""
    part = Part(**row)
    # Ray Data restarts a task without limit. What killed one process (most likely lack of memory) would kill the next ones too.
    if attempt_of_task() >= tries:
        rows = f"rows {part.first_row} to {part.first_row + part.rows - 1}"
        why = f"{part.file}: every process that encodes {rows} dies (tried {tries} times; out of memory?)"
        return {"done": "", "error": f"{why}; {_KEPT}"}
    why = ""
    for _ in range(tries):
        try:
            check_this_node(versions, use_gpu=load["use_gpu"])
            return {"done": json.dumps(asdict(encode_part(_encoder(**load), source, plan, part, out))), "error": ""}
        except TransientStorageError as error:
            why = f"{error} (given up after {tries} attempts); {_KEPT}"
        except UserError as error:
            return {"done": "", "error": str(error)}
        except OSError as error:
            return {"done": "", "error": f"{error.filename or out}: {error.strerror or error}"}
    return {"done": "", "error": why}


@cache
def _encoder(model: str, threads: int, use_gpu: bool, engine: Engine) -> GaussianEncoder:
    torch.set_num_threads(max(1, threads))
    return GaussianEncoder.from_pretrained(found(model), engine).to_device("cuda" if use_gpu else "cpu")
