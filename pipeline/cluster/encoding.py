"""Encodes token stores: in this process, or on many nodes at once."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError

from pipeline.cluster.failures import reason_of, shortage_in, user_error_in
from pipeline.cluster.memory import wait_for_memory
from pipeline.cluster.session import Session, check_this_node
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.data.token_store import open_store
from pipeline.distributed.precision import has_bf16
from pipeline.evaluation.encoding import Encode, ProjectTokens, T, encode_here, joined, share_of
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
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
    table: IO[bytes] | None = None,
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
    shared, versions = on.share(model), on.versions
    how = {"bf16": bf16, "project": project, "table": table}
    return [_encode_by_tasks(one, on, versions, (shared, on.share(one)), **how) for one in stores]


def compute_where_encoded(
    what: Callable[[Path, Path, Encode], T], model: Path, store: Path, *, params: ClusterParams, session: Callable[[], Session]
) -> T:
    """Compute something from a model and a token store, as `Compute` says: in this process, or on a standing cluster in a task.

    So a cluster's head, on which this process may run, keeps no encodings in its memory or on its disk. A task that dies is
    repeated up to `cluster.max_failures` times.

    Args:
        what: can be pickled, as its answer.

    Raises:
        UserError: as in `encode_stores`, or what `what` raised.
    """
    if not standing(params):
        return what(model, store, partial(encode_stores, params=params, session=session))
    on = session()
    # On a core: a GPU would draw another dropout, and another head.
    task, fixed = _task(_compute_task, on, gpus=0), (what, on, on.versions, (on.share(model), on.share(store)))
    ((_, answer),) = _in_any_order(lambda _: task.remote(*fixed), 1, 1, model, on.params)
    return answer


def _task(function: Callable[..., Any], on: Session, gpus: int) -> Any:
    again = {"max_retries": on.params.max_failures, "retry_exceptions": [TransientStorageError]}
    return ray.remote(num_cpus=on.params.reserved_cpus, num_gpus=gpus, **again)(function)


def _compute_task(what: Callable[[Path, Path, Encode], T], on: Session, versions: Any, shared: tuple[str, str]) -> T:
    check_this_node(versions, use_gpu=False)
    torch.set_num_threads(on.params.threads(1))
    # While this process waits for the tasks that encode, Ray gives its core to them.
    by_tasks = partial(_encode_by_tasks, on=on, versions=versions, shared=shared)
    return what(found(shared[0]), found(shared[1]), lambda _, stores, **how: [by_tasks(one, **how) for one in stores])


def _encode_by_tasks(
    store: Path, on: Session, versions: Any, shared: tuple[str, str], *, table: IO[bytes] | None = None, **how: Any
) -> Gaussian:
    """Encode a store on all nodes.

    Args:
        versions: `Session.versions` of the process that has the session.
        shared: the names of the model and of the store, for `found`.
    """
    opened, at_once = open_store(store), on.params.workers * on.concurrent
    # The token vectors that a file is for are several times as large as Gaussians.
    most = (_GPU_SHARE if on.use_gpu else _SHARE) // (1 if table is None else 4)
    shares = max(at_once, math.ceil(len(opened) / most))
    task = _task(_encode_task if table is None else _token_task, on, int(on.use_gpu))
    fixed = *shared, shares, on.params.threads(1), versions, on.use_gpu
    parts = _in_any_order(lambda share: task.remote(share, *fixed, **how), shares, at_once, store, on.params)
    if table is not None:
        parts = ((share, _of_arrays(*arrays)) for share, arrays in parts)
    return joined(parts, shares, opened, table)


def _in_any_order(
    send: Callable[[int], Any], shares: int, at_once: int, place: Path, params: ClusterParams
) -> Iterator[tuple[int, Any]]:
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
                raise user_error_in(error) or UserError(f"{place}: a task that reads it failed: {reason_of(error)}") from None
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
    *,
    bf16: bool = False,
    project: ProjectTokens | None = None,
) -> Gaussian:
    check_this_node(versions, use_gpu=use_gpu)
    torch.set_num_threads(max(1, threads))
    device = torch.device("cuda" if use_gpu else "cpu")
    encoder, opened = GaussianEncoder.from_pretrained(found(model)).to(device), open_store(found(store))
    rows = share_of(opened, share, shares)
    return encoder.encode_rows(opened, rows, bf16=bf16 and has_bf16(device), project=project).to("cpu")


def _token_task(*fixed: Any, **how: Any) -> tuple[NDArray[Any], ...]:
    """The starts, lengths and token vectors of a share: arrays, which Ray hands on without a copy."""
    tokens = _encode_task(*fixed, **how).tokens
    assert tokens is not None
    return tokens.start.numpy(), tokens.length.numpy(), tokens.table.numpy()


def _of_arrays(*arrays: NDArray[Any]) -> Gaussian:
    # They cannot be written, and torch warns of that.
    with warnings.catch_warnings(action="ignore"):
        start, length, table = map(torch.from_numpy, arrays)
    return Gaussian(*torch.empty((2, len(length), 0)), tokens=TokenVectors(table, start, length))
