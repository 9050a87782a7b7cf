"""Parts of a corpus encoded on all nodes (Ray Data)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster.session import Session
from pipeline.errors import TransientStorageError, UserError
from pipeline.reasons import reason_of
from pipeline.storage import found

if TYPE_CHECKING:
    from pipeline.bulk import Done, Part, Plan
    from pipeline.encoder import GaussianEncoder


def encode_parts(model: Path, source: str, plan: Plan, pending: Sequence[Part], out: str, on: Session) -> Iterator[Done]:
    """Encode parts, as many at a time as there are workers' places; each is given when its file is there, in no order.

    If the process of a part dies, another encodes the part again, up to `cluster.max_failures` times. After a
    `TransientStorageError` the part is tried again as often.

    Raises:
        UserError: a part cannot be read, encoded or written, or its process died once more than that.
    """
    import ray.data
    from ray.exceptions import RayError

    from pipeline.bulk import Done

    context = ray.data.DataContext.get_current()
    # Our own lines say it better.
    context.enable_progress_bars = False
    # The number of parts at a time is bound enough. Ray Data's budget holds for taken what a killed training run had (Ray's note
    # of it lapses three minutes later), and on a cluster that is free it would do one part at a time.
    context.op_resource_reservation_enabled = False
    # By default a run ends where half an hour goes by without a part: on processors a part may take longer.
    context.execution_no_progress_timeout_s = -1
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    dataset = ray.data.from_items([{"number": part.number} for part in pending], override_num_blocks=len(pending))
    task: Any = _encode
    encoded = dataset.map(
        task,
        fn_kwargs={
            "model": on.share(model),
            "source": source,
            "plan": plan,
            "out": out,
            "threads": int(on.params.cpus_per_worker),
            "use_gpu": on.use_gpu,
            "tries": on.params.max_failures + 1,
        },
        num_cpus=on.params.cpus_per_worker,
        num_gpus=1 if on.use_gpu else 0,
        compute=ray.data.TaskPoolStrategy(min(len(pending), on.params.workers * on.concurrent)),
        # A process goes on to the next part with the model that it has loaded; with a GPU it would end by default.
        max_calls=0,
    )
    try:
        for row in encoded.iter_rows():
            if row["error"]:
                raise UserError(row["error"])
            yield Done(**json.loads(row["done"]))
    except RayError as error:
        raise UserError(f"{source}: cannot be encoded: {reason_of(error, Path(out))}") from None


def _encode(
    row: dict[str, Any], *, model: str, source: str, plan: Plan, out: str, threads: int, use_gpu: bool, tries: int
) -> dict[str, Any]:
    import ray

    from pipeline.bulk import encode_part

    part = plan.parts[int(row["number"])]
    # Ray Data has a task done anew without end; what takes down one process (most likely, memory) would take down them all.
    if ray.get_runtime_context().worker.core_worker.get_current_task_attempt_number() >= tries:
        last = part.first_row + part.rows - 1
        why = (
            f"{part.file}: whatever process encodes rows {part.first_row} to {last} dies, {tries} did (given up; out of memory?)"
        )
        return {"done": "", "error": f"{why}; what is encoded is kept, the next run goes on with the rest"}
    # Raised, what is wrong would come back below pages of Ray Data's own.
    why = ""
    for _ in range(tries):
        try:
            done = encode_part(_encoder(model, threads, use_gpu), source, plan, part, out)
        except TransientStorageError as error:
            why = f"{error} (given up after {tries} attempts); what is encoded is kept, the next run goes on with the rest"
        except UserError as error:
            return {"done": "", "error": str(error)}
        except OSError as error:
            return {"done": "", "error": f"{error.filename or out}: {error.strerror or error}"}
        else:
            return {"done": json.dumps(asdict(done)), "error": ""}
    return {"done": "", "error": why}


@cache
def _encoder(model: str, threads: int, use_gpu: bool) -> GaussianEncoder:
    import torch

    from pipeline.encoder import GaussianEncoder

    torch.set_num_threads(max(1, threads))
    return GaussianEncoder.from_pretrained(found(model)).to("cuda" if use_gpu else "cpu")
