"""How many workers fit on the nodes of a cluster, on which device they run, and what is missing if there is too little room.

Training runs follow a cluster: they ask it to grow, take up new workers, and leave a node before it is removed. The global batch
and its gradients do not depend on the number of workers (`pipeline.distributed.collectives`). So a run may go on with another
number from any checkpoint. Ray Train's own elastic runs end the workers wherever they are, and what they did since the last
checkpoint is lost. Here the first worker asks all to pause: they write a checkpoint at the next step, end, and are started again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from uuid import uuid4

import ray

from pipeline.cluster.ray_private import free_on_nodes, leaving_nodes, room_requests
from pipeline.config.execution import EXECUTION_FILE, ClusterParams
from pipeline.utils.errors import UserError, counted
from pipeline.utils.logs import log

# Seconds between two looks at the cluster.
_LOOK = 2.0


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
    places = worker_places(nodes, params.reserved_cpus, use_gpu=True)
    if unusable is None and not places:
        unusable = f"no node has a GPU and {params.reserved_cpus:g} CPU; lower cluster.cpus_per_worker"
    if unusable is not None:
        return params, False, f"{gpu_words} not used: {unusable}, or set cluster.device: cpu ({EXECUTION_FILE})"
    if places >= params.workers:
        return params, True, None
    fewest = None if params.min_workers is None else min(params.min_workers, places)
    notice = (
        f"{gpu_words} for cluster.workers: {params.workers}, so {places} worker{'s run' if places > 1 else ' runs'}; set "
        f"cluster.workers: {places}, or cluster.device: cpu for {params.workers} ({EXECUTION_FILE})"
    )
    return params.model_copy(update={"workers": places, "min_workers": fewest}), True, notice


class Demand:
    """A request to the cluster's autoscaler for more room, which ends with its block. Without an autoscaler it changes nothing.

    Requests of several runs add up, and Ray Train makes its own for the workers that it starts. So this is for those that are not
    started: because the cluster is too small.
    """

    def __init__(self, params: ClusterParams, use_gpu: bool) -> None:
        self._bundle = resources_of(params, use_gpu)
        self._asked, self._when = 0, 0.0

    def __enter__(self) -> Demand:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask(0)

    @cached_property
    def _coordinator(self) -> Any:
        return room_requests(f"gausscse-{uuid4().hex}")

    def ask(self, workers: int) -> None:
        """Ask for room for so many workers more; call this often, as a request expires after two minutes."""
        now = time.monotonic()
        if workers == self._asked and (not workers or now - self._when < 30.0):
            return
        self._asked, self._when = workers, now
        if workers:
            self._coordinator.request_resources([self._bundle] * workers, 120.0)
        else:
            self._coordinator.cancel_request()


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
    with Demand(params, use_gpu) as more:
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
            time.sleep(min(_LOOK, max(0.0, deadline - time.monotonic())))


def worker_places(nodes: Sequence[Mapping[str, float]], cpus: float, use_gpu: bool) -> int:
    """How many workers fit on these nodes. A worker runs on one node, so leftovers on several nodes do not add up to a place."""

    def fit(have: float, need: float) -> int:
        # Ray counts in ten-thousandths. With floats, 1.0 // 0.1 would give 9.
        return round(have * 10_000) // max(1, round(need * 10_000))

    return sum(min(fit(node.get("CPU", 0), cpus), fit(node.get("GPU", 0), 1.0) if use_gpu else sys.maxsize) for node in nodes)


def workers_after_move(params: ClusterParams, places: int, free_now: Callable[[], int], patience: float = 15.0) -> int:
    """Number of workers with which a paused run restarts.

    It does not wait for more room than it needs: other runs may have taken what was free when it left.

    Args:
        places: how many the whole cluster has, including those in use.
        free_now: gives the number of places that nobody uses.
        patience: seconds to wait for as many workers as fit into the cluster. Places of workers that have just ended count as
            free only after some seconds.
    """
    most = min(params.workers, places)
    fewest = min(most, params.min_workers or params.workers)
    deadline = time.monotonic() + patience
    while (free := free_now()) < most and time.monotonic() < deadline:
        time.sleep(_LOOK / 4)
    return max(fewest, min(most, free))


class ClusterWatch:
    """Watches the cluster, in a thread, while the workers of a run train.

    Args:
        homes: ids of the nodes that the workers are on, one for each worker.
    """

    def __init__(self, params: ClusterParams, use_gpu: bool, homes: Sequence[str]) -> None:
        self._params, self._use_gpu, self._homes = params, use_gpu, set(homes)
        self._missing = params.workers - len(homes)
        self._room, self._since = 0, 0.0
        self._over = threading.Event()
        self.why_move = ""
        """Why the workers should be started again, in words; empty while they should not."""

    def __enter__(self) -> ClusterWatch:
        threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        with Demand(self._params, self._use_gpu) as more:
            while not self.why_move and not self._over.wait(_LOOK):
                try:
                    more.ask(self._missing)
                    leaving = leaving_nodes()
                    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in leaving}
                    free = free_places(self._params, self._use_gpu) if self._missing else 0
                    self.why_move = self.reason_to_move(addresses, free, time.monotonic())
                except Exception:
                    # Ray's head does not answer. Training goes on without it, and this is tried again.
                    continue

    def reason_to_move(self, leaving: Mapping[str, str], free: int, now: float) -> str:
        """Why the workers should be started again, by what the cluster is like now; empty if they should not.

        Args:
            leaving: id → address of each node that is about to be removed.
            free: how many workers fit into what nobody uses.
            now: seconds on some clock.
        """
        if names := sorted(address for node, address in leaving.items() if node in self._homes):
            return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} about to leave the cluster"
        room = min(self._missing, free)
        if room != self._room:
            self._room, self._since = room, now
        # Others may be about to use room that has just become free, and nodes come one after another.
        return f"there is room for {room} more" if room and now - self._since >= 12.0 else ""
