"""Independent tasks on all nodes (Ray Data): parts of a corpus to encode, parts of the data to prepare and tokenize."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data
from ray.exceptions import RayError

from pipeline.cluster.failures import KEPT, reason_of, shortage_in
from pipeline.cluster.memory import wait_for_memory
from pipeline.cluster.ray_private import attempt_of_task
from pipeline.cluster.session import Session, check_this_node
from pipeline.storage.exchange import Exchange
from pipeline.utils.errors import TransientStorageError, UserError


def run_tasks(
    task: Callable[..., Any], items: Mapping[str, Mapping[str, Any]], fixed: Mapping[str, Any], on: Session, what: str
) -> Iterator[tuple[str, Any]]:
    """Call task(**item, **fixed) for each item, as many at a time as there is room for workers.

    If the process of an item dies, another process does it again, up to `cluster.max_failures` times. After a
    `TransientStorageError` it is tried again, equally often, and after a lack of memory once there is memory again.

    Args:
        items: by name, for messages; JSON.
        what: what is done to them, for messages: `SOURCE: cannot be encoded`.

    Yields:
        the name of an item and its result (JSON), in any order.

    Raises:
        UserError: a task raised one, or more than `cluster.max_failures` processes of an item died; a node has other package
            versions, or a GPU that torch cannot use.
        RunError: a node has no memory after `cluster.placement_timeout_s`.
    """
    context = ray.data.DataContext.get_current()
    # We print our own progress lines.
    context.enable_progress_bars = False
    # The task pool below already limits the tasks at a time. For three minutes, Ray Data's own budget counts the resources of a
    # killed training run as taken. It would then run one task at a time on a free cluster.
    context.op_resource_reservation_enabled = False
    # By default a run ends after half an hour without a finished task. On CPUs a task may take longer.
    context.execution_no_progress_timeout_s = -1
    # The caller reports an error, in one line.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    tries = on.params.max_failures + 1
    sent = {"task": task, "fixed": fixed, "tries": tries, "versions": on.versions, "use_gpu": on.use_gpu}
    left = dict(items)
    function: Any = _run
    for attempt in range(1, tries + 1):
        rows = [{"name": name, "item": json.dumps(item)} for name, item in left.items()]
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            function,
            fn_kwargs=sent | {"threads": on.params.threads(1)},
            num_cpus=on.params.reserved_cpus,
            num_gpus=int(on.use_gpu),
            compute=ray.data.TaskPoolStrategy(min(len(rows), on.params.workers * on.concurrent)),
            # A process keeps what it has loaded for the next item. By default, a process with a GPU would end after each one.
            max_calls=0,
        )
        try:
            for row in results.iter_rows():
                if row["error"]:
                    raise UserError(row["error"])
                del left[row["name"]]
                yield row["name"], json.loads(row["result"])
            return
        except RayError as error:
            if shortage_in(error) is None or attempt == tries:
                raise UserError(f"{what}: {reason_of(error)}") from None
            wait_for_memory(error, on.params)


def _run(
    row: Mapping[str, str],
    *,
    task: Callable[..., Any],
    fixed: Mapping[str, Any],
    tries: int,
    versions: dict[str, str] | None,
    use_gpu: bool,
    threads: int,
) -> dict[str, str]:
    """Errors are returned, not raised: Ray Data would print pages of its own output above a raised error."""
    name, why = row["name"], ""
    # Ray Data restarts a task without limit. What killed one process (most likely lack of memory) would kill the next ones too.
    if attempt_of_task() >= tries:
        why = f"{name}: every process that works on it dies (tried {tries} times; out of memory?); {KEPT}"
        return {"name": name, "result": "", "error": why}
    # On a cluster, only what is reserved is ours.
    pa.set_cpu_count(max(1, threads))
    os.environ["RAYON_NUM_THREADS"] = str(max(1, threads))
    for _ in range(tries):
        try:
            check_this_node(versions, use_gpu=use_gpu)
            return {"name": name, "result": json.dumps(task(**json.loads(row["item"]), **fixed)), "error": ""}
        except TransientStorageError as error:
            why = f"{error} (given up after {tries} attempts); {KEPT}"
        except UserError as error:
            why = str(error)
            break
        except OSError as error:
            why = f"{error.filename or name}: {error.strerror or error}"
            break
    return {"name": name, "result": "", "error": why}


@dataclass(frozen=True, slots=True)
class NodesSpread:
    """A `pipeline.storage.exchange.Spread`: the nodes of a session. Finished tasks are not done again.

    Args:
        parts: as there; each task of a partition takes some hundred bytes of memory for each of its rows.
    """

    on: Session
    exchange: Exchange
    parts: int
    stage: str

    def share(self, path: Path) -> str:
        """A name for a file or folder; `found(name)` gives its path on any node."""
        return self.on.share(path)

    def run(self, task: Callable[..., Any], items: Sequence[dict[str, Any]], **fixed: Any) -> list[Any]:
        """Call task(**item, **fixed, exchange=…) for each item; the results in the order of the items."""
        stem = task.__name__.strip("_")
        names = {f"{self.stage}: {stem} {item['number']}": {"name": f"{stem}-{item['number']}", "item": item} for item in items}
        given = {"task": task, "fixed": fixed, "exchange": self.exchange}
        done = dict(run_tasks(_once, names, given, self.on, f"{self.stage}: {stem}"))
        return [done[name] for name in names]


def _once(name: str, item: Mapping[str, Any], task: Callable[..., Any], fixed: Mapping[str, Any], exchange: Exchange) -> Any:
    return exchange.once(name, lambda: task(**item, **fixed, exchange=exchange))


def parts_for(size: int, workers: int) -> int:
    """The number of partitions for so many bytes of text: a power of two, about 128 MB each, and at least two for each worker."""
    return 2 ** math.ceil(math.log2(max(size // 2**27, 2 * workers, 1)))
