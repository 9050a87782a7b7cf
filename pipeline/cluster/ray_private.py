"""The private parts of Ray that this program needs, each with its reason. No other module touches a private name of Ray.

A version of Ray may change them, so pyproject.toml has an upper bound for Ray. tests/cluster/test_ray_private.py tries each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray._private import ray_constants, state
from ray._private.utils import get_used_memory
from ray._raylet import AuthenticationTokenLoader, PlacementGroupID
from ray.util.placement_group import PlacementGroup


def leaving_nodes() -> set[str]:
    """Ids of the nodes that are about to be removed: the cloud takes them back, or someone ran `ray drain-node`.

    `ray.nodes()` does not tell them from others.
    """
    return set(state.state.get_draining_nodes())


def free_on_nodes() -> dict[str, Mapping[str, float]]:
    """The resources (name → amount) of each node, by its id, that nobody uses. `ray.available_resources()` is only their sum."""
    return state.available_resources_per_node()


def used_memory() -> int:
    """Bytes in use, in this container or on this machine, as Ray's memory monitor counts them."""
    return int(get_used_memory())


def placement_group_of(number: str) -> PlacementGroup:
    """The placement group with this id in hexadecimal digits. Ray lists groups by their ids, and removes only the object."""
    return PlacementGroup(PlacementGroupID(bytes.fromhex(number)))


def actor_manager() -> tuple[Any, Any]:
    """The class by which Tune starts the processes of trials and hears of their end, and the module that holds it.

    Tune has no public way to go on after an `OutOfMemoryError` of a trial's process; it ends the search.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution import tune_controller

    return RayActorManager, tune_controller


def attempt_of_task() -> int:
    """The number of this attempt at the task that runs in this process, from 0; the runtime context lacks it."""
    return ray.get_runtime_context().worker.core_worker.get_current_task_attempt_number()


def listen_to_others(whether: bool) -> None:
    """Whether a Ray that this process starts or joins listens to other machines; if not, it gets the address 127.0.0.1.

    Ray has this only as an environment variable for macOS and Windows. `ray.init` turns an address of 127.0.0.1 into another one.
    """
    ray_constants.ENABLE_RAY_CLUSTER = whether


def forget_token() -> None:
    """Have Ray read RAY_AUTH_TOKEN again. It keeps the first token of a process, which may be for another cluster."""
    AuthenticationTokenLoader.instance().reset_cache()


def quiet_client() -> None:
    """Keep Ray's client from logging every upload and every closed connection. It has no switch for that."""
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.ERROR)


def room_requests(name: str) -> Any:
    """Requests for room to the autoscaler, under a name. Those of all names add up, with those that Ray Train makes.

    A request by `ray.autoscaler.sdk.request_resources` replaces that of others, and does not expire.
    """
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import DefaultAutoscalingCoordinator

    return DefaultAutoscalingCoordinator(name)
