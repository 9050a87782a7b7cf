"""What the program needs of Ray that is not public: all of it is there in the installed version, and does what it is for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import worker
from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
from ray._private.runtime_env import packaging
from ray._private.worker import get_dashboard_url
from ray.dashboard.modules import dashboard_sdk
from ray.dashboard.modules.job import sdk
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.state import list_placement_groups

from pipeline.cluster import ray_private
from pipeline.cluster.jobs import _client
from pipeline.cluster.session import Session, session
from pipeline.cluster.worker_group import free_url, interface_with
from pipeline.config.load import load_execution
from pipeline.storage.object_store import private_folder
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.gates import wait_for


@pytest.fixture(scope="module")
def on() -> Iterator[Session]:
    with session(load_execution(ROOT / "execution.yaml").cluster) as opened:
        yield opened


def test_no_node_is_leaving_and_what_is_free_of_it_is_what_nobody_uses(on: Session) -> None:
    assert ray_private.leaving_nodes() == set()
    node, total = ray.get_runtime_context().get_node_id(), ray.cluster_resources()["CPU"]
    assert ray_private.free_on_nodes()[node]["CPU"] == total

    class Busy:
        def ready(self) -> None: ...

    actor: Any = ray.remote(num_cpus=1)(Busy)
    busy = actor.remote()
    ray.get(busy.ready.remote())
    wait_for(lambda: ray_private.free_on_nodes()[node].get("CPU", 0) == total - 1, 60, "a core is used")
    ray.kill(busy)


def test_a_private_ray_is_out_of_reach_of_others(on: Session) -> None:
    def listening() -> dict[str, set[str]]:
        """Of each process of this Ray that listens to TCP, the addresses."""
        found: dict[str, set[str]] = {}
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                places = {one.laddr.ip for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
                if places:
                    found[" ".join(process.cmdline())] = places
        return found

    # The ports for metrics among them, which ask for no token.
    expected = {"gcs_server", "monitor.py", "DashboardAgent"}
    wait_for(lambda: expected == set(re.findall("|".join(expected), " ".join(listening()))), 60, "all listen")
    for command, places in listening().items():
        assert places <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, command
    node: Any = worker._global_node
    folder = Path(node.get_session_dir_path())
    assert private_folder() in folder.parents
    assert private_folder().stat().st_mode & 0o077 == 0


def test_the_token_is_read_again(on: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://{get_dashboard_url()}"
    with monkeypatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        _client(address)
        ray_private.forget_token()
        with pytest.raises(UserError, match="no Ray cluster answers"):
            _client(address)
    ray_private.forget_token()
    _client(address)


def test_requests_for_room_of_two_names_add_up(on: Session) -> None:
    def requested() -> list[dict[str, float]]:
        return json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or "[]")

    one, two = (ray_private.room_requests(name) for name in ("one", "two"))
    one.request_resources([{"CPU": 1.0}], 60.0)
    two.request_resources([{"CPU": 2.0}], 60.0)
    wait_for(lambda: sorted(asked["CPU"] for asked in requested()) == [1.0, 2.0], 60, "room is asked for by both")
    one.cancel_request()
    wait_for(lambda: requested() == [{"CPU": 2.0}], 60, "the other request is left")
    two.cancel_request()


def test_a_task_knows_its_attempt(on: Session) -> None:
    def second() -> int:
        if (attempt := ray_private.attempt_of_task()) == 0:
            raise OSError
        return attempt

    task: Any = ray.remote(max_retries=1, retry_exceptions=True)(second)
    assert ray.get(task.remote()) == 1


def test_the_client_is_quiet() -> None:
    ray_private.quiet_client()
    for logger in (dashboard_sdk.logger, sdk.logger, packaging.default_logger):
        assert not logger.isEnabledFor(logging.WARNING)


def test_the_workers_meet_at_a_free_port(on: Session) -> None:
    address = ray.util.get_node_ip_address()
    assert free_url().startswith(f"tcp://{address}:")
    assert free_url() != free_url()
    held = psutil.net_if_addrs()
    for name, addresses in held.items():
        for one in addresses:
            assert one.address in {other.address for other in held[interface_with(one.address) or ""]}, name
    assert interface_with("203.0.113.77") is None


def test_a_placement_group_is_removed_by_the_id_that_ray_lists(on: Session) -> None:
    def listed() -> list[Any]:
        # Other Rays may run on this machine.
        return list_placement_groups(ray.get_runtime_context().gcs_address, filters=[("state", "=", "CREATED")])

    assert placement_group([{"CPU": 1}]).wait(60)
    (group,) = listed()
    remove_placement_group(ray_private.placement_group_of(group.placement_group_id))
    wait_for(lambda: not listed(), 60, "it is removed")


def test_the_memory_in_use_is_that_of_the_machine_or_less() -> None:
    memory = psutil.virtual_memory()
    # A container counts only its own.
    assert 0 < ray_private.used_memory() <= 1.1 * (memory.total - memory.available)


def test_tune_hears_of_failures_by_the_class_that_is_replaced() -> None:
    kind, holder = ray_private.actor_manager()
    assert holder.RayActorManager is kind or issubclass(holder.RayActorManager, kind)
    assert callable(kind._actor_start_failed) and callable(kind._actor_task_failed)
