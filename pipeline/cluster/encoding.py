"""Encodes token stores: in this process, or on many nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pipeline.evaluation.encoding import ProjectTokens, encode_here, encode_share, reassemble
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.object_store import found
from pipeline.utils.errors import TransientStorageError, UserError


def encode_stores(
    model: Path,
    stores: Sequence[Path],
    params: ClusterParams,
    session: Callable[[], Session],
    *,
    bf16: bool = False,
    project: ProjectTokens | None = None,
) -> Sequence[Gaussian]:
    """Encode every sentence of each token store once, in float32 or with bf16 autocast where a device has instructions for it.

    If the only devices are this machine's cores, or its one GPU, this process does it: starting Ray takes longer than encoding
    most data sets. Otherwise there are as many tasks as there is room for.

    Returns:
        for each store a Gaussian of (S, D) on the CPU.

    Raises:
        UserError: the model or a store cannot be used, or an encoding process died.
        RunError: a node has other package versions, or a GPU that torch cannot use.
    """
    # A driver that is too old may count GPUs that torch cannot use.
    gpus = torch.cuda.device_count() if params.device != "cpu" and torch.cuda.is_available() else 0
    if not standing(params) and (gpus == 1 or (gpus == 0 and params.device != "cuda")):
        return encode_here(model, stores, gpu=gpus == 1, bf16=bf16, project=project)
    on = session()
    again = {"max_retries": on.params.max_failures, "retry_exceptions": [TransientStorageError]}
    task = ray.remote(num_cpus=on.params.reserved_cpus, num_gpus=int(on.use_gpu), **again)(_encode_task)
    workers = on.params.workers * on.concurrent
    shared = on.share(model), [on.share(store) for store in stores]
    fixed = *shared, workers, on.params.threads(1), on.versions, on.use_gpu, bf16, project
    done: dict[int, list[Gaussian]] = {}
    failures = 0
    while missing := [share for share in range(workers) if share not in done]:
        pending = [task.remote(share, *fixed) for share in missing]
        lost: list[RayError] = []
        for share, answer in zip(missing, pending, strict=True):
            try:
                done[share] = ray.get(answer)
            except RayError as error:
                lost.append(error)
                if shortage_in(error) is None or failures == on.params.max_failures:
                    raise user_error_in(error) or UserError(f"{model}: cannot be scored: {reason_of(error)}") from None
        failures += 1
        for error in lost:
            wait_for_memory(error, on.params)
    return [reassemble([part[k] for _, part in sorted(done.items())], open_store(store)) for k, store in enumerate(stores)]


def _encode_task(
    share: int,
    model: str,
    stores: list[str],
    shares: int,
    threads: int,
    versions: Any,
    use_gpu: bool,
    bf16: bool,
    project: ProjectTokens | None,
) -> list[Gaussian]:
    check_this_node(versions, use_gpu=use_gpu)
    torch.set_num_threads(max(1, threads))
    device = torch.device("cuda" if use_gpu else "cpu")
    encoder, bf16 = GaussianEncoder.from_pretrained(found(model)).to(device), bf16 and has_bf16(device)
    opened = [open_store(found(store)) for store in stores]
    return [encode_share(encoder, store, share, shares, bf16=bf16, project=project).to("cpu") for store in opened]
