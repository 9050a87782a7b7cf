"""Waits for memory after Ray has killed processes because their node was short of it."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import ray
from ray.util.placement_group import remove_placement_group
from ray.util.state import list_actors, list_placement_groups
from ray.util.state.exception import RayStateApiException

from pipeline.cluster.failures import Shortage, shortage_in
from pipeline.cluster.ray_private import placement_group_of, used_memory
from pipeline.cluster.session import on_nodes
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.utils.errors import RunError, UserError
from pipeline.utils.logs import log


def wait_for_memory(error: BaseException, params: ClusterParams) -> None:
    """Wait until a node has room again for the processes that Ray killed for lack of memory; other errors need no wait.

    One line says so. The process that calls this is none that Ray kills.

    Raises:
        RunError: there is no room after `cluster.placement_timeout_s`.
    """
    if (shortage := shortage_in(error)) is None:
        return
    # For the processes of a training run, of which Ray may have killed one only; on a small node a part of its memory.
    least = min(2**30, shortage.limit / 16)
    # With all that the killed processes used, a trial that is itself too large for the node would wait in vain: it should start
    # again, and fail for good.
    needed, patience, said = max(least, 0.8 * shortage.killed), params.placement_timeout_s, False
    deadline = time.monotonic() + patience
    while (free := _free(shortage)) < needed:
        words = f"{shortage.words}; {max(0.0, free) / 2**30:.1f} GB are free for Ray, {needed / 2**30:.1f} GB are needed"
        if time.monotonic() >= deadline:
            raise RunError(f"{words}, also after {patience:g} s; end other processes")
        if not said:
            log.warning(f"{words}; waiting {patience:g} s at most")
        said = True
        time.sleep(1.0)
    # A driver that trains has a place that Tune looks after.
    if params.workers > 1 or standing(params):
        _free_places()


def _free_places() -> None:
    """Free the places of training runs that are dead. Ray Train has a process for this, which Ray may have killed as well."""
    context = ray.get_runtime_context()
    where, job = context.gcs_address, context.get_job_id()
    # If Ray does not answer now, Ray Train's process may still free them.
    with suppress(RayStateApiException, OSError):
        actors = list_actors(where, filters=[("state", "!=", "DEAD")], limit=10_000, detail=True)
        used = {actor.placement_group_id for actor in actors}
        for group in list_placement_groups(where, filters=[("creator_job_id", "=", job), ("state", "=", "CREATED")], detail=True):
            # Those without cores are Tune's.
            if group.placement_group_id not in used and any("CPU" in one["unit_resources"] for one in group.bundles or []):
                remove_placement_group(placement_group_of(group.placement_group_id))


def _free(shortage: Shortage) -> float:
    """Bytes of the node that may be used before Ray kills processes: 0 while it does not say, infinite if it is gone."""

    def free() -> float:
        memory = psutil.virtual_memory()
        # A container may use less than the machine has.
        container = shortage.limit < memory.total
        return shortage.threshold - (used_memory() if container else memory.total - memory.available)

    if shortage.node == ray.get_runtime_context().get_node_id():
        return free()
    if shortage.node not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}:
        return float("inf")
    try:
        return next(on_nodes(free, {shortage.node: shortage.node}, patience=20.0))[1]
    except UserError:
        return 0.0
