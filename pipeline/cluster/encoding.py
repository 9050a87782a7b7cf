"""Encodes token stores: in this process, or on many nodes at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from pipeline.cluster.failures import reason_of, shortage_in, user_error_in
from pipeline.cluster.memory import wait_for_memory
from pipeline.cluster.session import Session, check_this_node
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.data.token_store import open_store
from pipeline.distributed.precision import has_bf16
from pipeline.evaluation.encoding import ProjectTokens, encode_here, joined, share_of
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.object_store import found
from pipeline.utils.errors import TransientStorageError, UserError

# Sentences of a task, at most. A task with a GPU has a process of its own, which takes seconds to start.
_SHARE, _GPU_SHARE = 65_536, 262_144


def encode_stores(
    model: Path,
    stores: Sequence[Path],
    params: ClusterParams,
    session: Callable[[], Session],
    *,
    bf16: bool = False,
    project: ProjectTokens | None = None,
    table: Path | None = None,
) -> Sequence[Gaussian]:
    """Encode every sentence of each token store once, in float32 or with bf16 autocast where a device has instructions for it.

    If the only devices are this machine's cores, or its one GPU, this process does it: starting Ray takes longer than encoding
    most data sets. Otherwise there are as many tasks as there is room for.

    Args:
        table: as in `pipeline.evaluation.encoding.joined`; for one store.

    Returns:
        for each store a Gaussian of (S, D) on the CPU.

    Raises:
        UserError: the model or a store cannot be used, or an encoding process died.
        RunError: a node has other package versions, or a GPU that torch cannot use.
    """
    # A driver that is too old may count GPUs that torch cannot use.
    gpus = torch.cuda.device_count() if params.device != "cpu" and torch.cuda.is_available() else 0
    if not standing(params) and (gpus == 1 or (gpus == 0 and params.device != "cuda")):
        return encode_here(model, stores, gpu=gpus == 1, bf16=bf16, project=project, table=table)
    on = session()
    again = {"max_retries": on.params.max_failures, "retry_exceptions": [TransientStorageError]}
    task = ray.remote(num_cpus=on.params.reserved_cpus, num_gpus=int(on.use_gpu), **again)(_encode_task)
    at_once, shared = on.params.workers * on.concurrent, on.share(model)
    results: list[Gaussian] = []
    for store in stores:
        opened = open_store(store)
        shares = max(at_once, math.ceil(len(opened) / (_GPU_SHARE if on.use_gpu else _SHARE)))
        fixed = shared, on.share(store), shares, on.params.threads(1), on.versions, on.use_gpu, bf16, project
        parts = _in_any_order(lambda share, fixed=fixed: task.remote(share, *fixed), shares, at_once, model, on.params)
        results.append(joined(parts, shares, opened, table))
    return results


def _in_any_order(
    send: Callable[[int], Any], shares: int, at_once: int, model: Path, params: ClusterParams
) -> Iterator[tuple[int, Gaussian]]:
    """The answers to tasks, some of which run at a time; one that died is sent again."""
    waiting, running, lost = [*reversed(range(shares))], dict[Any, int](), Counter[int]()
    shortage: RayError | None = None
    while waiting or running:
        # No more than run, since a cluster that grows would start a node for them.
        while waiting and len(running) < at_once and shortage is None:
            share = waiting.pop()
            running[send(share)] = share
        if not running:
            assert shortage is not None
            wait_for_memory(shortage, params)
            shortage = None
            continue
        (ready,), _ = ray.wait([*running])
        share = running.pop(ready)
        try:
            answer = ray.get(ready)
        except RayError as error:
            if shortage_in(error) is None or lost[share] == params.max_failures:
                raise user_error_in(error) or UserError(f"{model}: cannot be scored: {reason_of(error)}") from None
            lost[share] += 1
            waiting.append(share)
            # Once the others have ended, which take memory themselves.
            shortage = error
        else:
            yield share, answer


def _encode_task(
    share: int,
    model: str,
    store: str,
    shares: int,
    threads: int,
    versions: Any,
    use_gpu: bool,
    bf16: bool,
    project: ProjectTokens | None,
) -> Gaussian:
    check_this_node(versions, use_gpu=use_gpu)
    torch.set_num_threads(max(1, threads))
    device = torch.device("cuda" if use_gpu else "cpu")
    encoder, opened = GaussianEncoder.from_pretrained(found(model)).to(device), open_store(found(store))
    rows = share_of(opened, share, shares)
    return encoder.encode_rows(opened, rows, bf16=bf16 and has_bf16(device), project=project).to("cpu")
