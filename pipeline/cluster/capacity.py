"""How many workers fit on the nodes of a cluster, on which device they run, and what is missing if there is too little room."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from uuid import uuid4

import ray

from pipeline.cluster.ray_private import free_on_nodes, leaving_nodes, room_requests
from pipeline.config.execution import EXECUTION_FILE, ClusterParams
from pipeline.utils.errors import UserError, counted
from pipeline.utils.logs import log

# Seconds between two checks of a cluster that is too small.
_POLL = 2.0
# Seconds after which a request to the autoscaler is repeated, and after which the autoscaler forgets it.
_REPEAT, _EXPIRES = 30.0, 120.0


def nodes() -> list[Mapping[str, float]]:
    """The resources (name → amount) of each node of the cluster that lives and is not about to be removed."""
    leaving = leaving_nodes()
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving]


def free_places(params: ClusterParams, use_gpu: bool) -> int:
    """How many workers fit into what nobody uses at the moment."""
    leaving = leaving_nodes()
    free = [resources for node, resources in free_on_nodes().items() if node not in leaving]
    return worker_places(free, params.reserved_cpus, use_gpu)


def on_device(
    params: ClusterParams, nodes: Sequence[Mapping[str, float]], unusable: str | None, *, may_grow: bool
) -> tuple[ClusterParams, bool, str | None]:
    """Decide what `cluster.device` means on these nodes.

    Args:
        nodes: the resources of each, by name.
        unusable: why torch cannot use the GPU of a node, and what to do there; None if it can use all.
        may_grow: whether more nodes may still join.

    Returns:
        the parameters with the number of workers to run, whether each gets a GPU, and a line to print if that is unexpected.

    Raises:
        UserError: cuda is asked for and cannot be used.
    """
    gpus = sum(node.get("GPU", 0) for node in nodes)
    if params.device == "cpu" or (params.device == "auto" and not gpus):
        return params, False, None
    gpu_words = f"{gpus:g} GPU{'s' if gpus > 1 else ''}"
    if params.device == "cuda":
        prefix = f"{EXECUTION_FILE}: cluster.device: got 'cuda', but"
        if unusable is not None:
            raise UserError(f"{prefix} {unusable}, or set cpu")
        if not gpus and not may_grow:
            raise UserError(f"{prefix} Ray finds no GPU on this machine; set auto or cpu")
        return params, True, None
    if unusable is not None:
        return params, False, f"{gpu_words} not used: {unusable}, or set cluster.device: cpu ({EXECUTION_FILE})"
    places = worker_places(nodes, params.reserved_cpus, use_gpu=True)
    if not places:
        why = f"no node has a GPU and {params.reserved_cpus:g} CPU; lower cluster.cpus_per_worker, or set cluster.device: cpu"
        return params, False, f"{gpu_words} not used: {why} ({EXECUTION_FILE})"
    if places >= params.workers:
        return params, True, None
    fewest = None if params.min_workers is None else min(params.min_workers, places)
    notice = (
        f"{gpu_words} for cluster.workers: {params.workers}, so {places} worker{'s run' if places > 1 else ' runs'}; set "
        f"cluster.workers: {places}, or cluster.device: cpu for {params.workers} ({EXECUTION_FILE})"
    )
    return params.model_copy(update={"workers": places, "min_workers": fewest}), True, notice


class Demand:
    """A request to the cluster's autoscaler for more room. Without an autoscaler it changes nothing.

    Requests of several runs add up, and Ray Train makes its own for the workers that it starts. So this is for those that are not
    started: because the cluster is too small.
    """

    def __init__(self, params: ClusterParams, use_gpu: bool) -> None:
        self._bundle = resources_of(params, use_gpu)
        self._asked, self._when = 0, 0.0

    @cached_property
    def _coordinator(self) -> Any:
        return room_requests(f"gausscse-{uuid4().hex}")

    def ask(self, workers: int) -> None:
        """Ask for room for so many workers more; call this often, as a request expires."""
        now = time.monotonic()
        if workers == self._asked and (not workers or now - self._when < _REPEAT):
            return
        self._asked, self._when = workers, now
        if workers:
            self._coordinator.request_resources([self._bundle] * workers, _EXPIRES)
        else:
            self._coordinator.cancel_request()


@contextmanager
def demand(params: ClusterParams, use_gpu: bool) -> Iterator[Demand]:
    """A `Demand` that ends with the block."""
    made = Demand(params, use_gpu)
    try:
        yield made
    finally:
        made.ask(0)


def resources_of(params: ClusterParams, use_gpu: bool) -> dict[str, float]:
    """What Ray reserves for a worker."""
    return {"CPU": params.reserved_cpus, **({"GPU": 1.0} if use_gpu else {})}


def wait_for_places(
    params: ClusterParams, use_gpu: bool, patience: float | None = None, say: Callable[[str], None] = log.info
) -> int:
    """How many workers the whole cluster has room for, including room that others use now. A cluster that can grow is asked to.

    Args:
        patience: seconds to wait until the cluster has room for the smallest number of workers; default
            `cluster.placement_timeout_s`.
        say: what to do with a line about waiting, once.

    Raises:
        UserError: the cluster is still too small then; the message says what is missing.
    """
    patience = params.placement_timeout_s if patience is None else patience
    deadline, said = time.monotonic() + patience, False
    fewest = params.min_workers or params.workers
    with demand(params, use_gpu) as more:
        while True:
            node_resources = nodes()
            places = worker_places(node_resources, params.reserved_cpus, use_gpu)
            if places >= fewest:
                return places
            if time.monotonic() >= deadline:
                totals = f"{sum(node.get('CPU', 0) for node in node_resources):g} CPU"
                totals += f" and {sum(node.get('GPU', 0) for node in node_resources):g} GPU" if use_gpu else ""
                raise UserError(
                    f"the cluster cannot place {counted(fewest, 'worker')}: each needs {params.reserved_cpus:g} CPU"
                    f"{' and 1 GPU' if use_gpu else ''} on one node; {counted(len(node_resources), 'node')} with {totals} "
                    f"{'has' if len(node_resources) == 1 else 'have'} room for {places}; "
                    f"lower cluster.workers or add nodes{', or set cluster.device: cpu' if use_gpu else ''} (execution.yaml)"
                )
            if not said:
                say(f"the cluster has room for {places} of {fewest} workers; waiting {patience:g} s at most for nodes to join")
            said = True
            more.ask(params.workers)
            time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))


def worker_places(nodes: Sequence[Mapping[str, float]], cpus: float, use_gpu: bool) -> int:
    """How many workers fit on these nodes. A worker runs on one node, so leftovers on several nodes do not add up to a place."""

    def fit(have: float, need: float) -> int:
        # Ray counts in ten-thousandths. With floats, 1.0 // 0.1 would give 9.
        return round(have * 10_000) // max(1, round(need * 10_000))

    return sum(min(fit(node.get("CPU", 0), cpus), fit(node.get("GPU", 0), 1.0) if use_gpu else sys.maxsize) for node in nodes)
