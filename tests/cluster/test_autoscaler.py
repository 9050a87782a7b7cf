"""An autoscaler of version 2, as on Kubernetes, adds the nodes that a stage waits for, and takes them back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.config.load import load_execution
from tests.cluster.hosts import Cluster, Host, network
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

# Ray's provider of nodes for tests starts each node on the head's host, and expects this id of the head.
HEAD_ID = "f" * 51 + "00000"
HEAD = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


@pytest.fixture
def scaling(hosts: Mapping[str, Host], tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of a head without cores. It gets up to four nodes of one core, and loses one that is idle for 6 s."""
    config = {
        "cluster_name": "scaling",
        "max_workers": 4,
        "idle_timeout_minutes": 0.1,
        "provider": {
            # By its module: type `fake_multinode` reads a file that Ray's wheel lacks.
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1, "object_store_memory": 100_000_000}, "node_config": {}, "max_workers": 4},
        },
        "head_node_type": "ray.head.default",
        **{key: [] for key in ("setup_commands", "head_setup_commands", "worker_setup_commands", "cluster_synced_files")},
    }
    with network(["head"], hosts["head"].env) as own:
        head = own["head"]
        # The provider's nodes take the address of the route to the internet.
        head.run("ip", "route", "add", "default", "dev", "eth0", cwd=tmp_path)
        cluster = Cluster(own, "head", tmp_path)
        file = tmp_path / "scaling.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        head.run(*cluster.command("head", 0), f"--autoscaling-config={file}", cwd=tmp_path, env={**cluster.env, **HEAD})
        yield cluster


# It gives the nodes 80 s to go. If the request were not taken back, it would expire after 90 s at least.
WAIT = """
import json, ray, sys, time
from pipeline.cluster.capacity import wait_for_places
from pipeline.config.execution import ClusterParams
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
def alive():
    return sum(node["Alive"] for node in ray.nodes())
before = alive()
places = wait_for_places(ClusterParams.model_validate_json(sys.argv[2]), use_gpu=False, say=print)
deadline = time.monotonic() + 80
while alive() > 1 and time.monotonic() < deadline:
    time.sleep(0.2)
print(json.dumps({"before": before, "places": places, "after": alive(), "ever": len(ray.nodes())}))
"""


def test_an_autoscaler_adds_the_nodes_a_stage_waits_for_and_takes_them_back(scaling: Cluster) -> None:
    cluster = load_execution(ROOT / "execution.yaml").cluster
    cluster = cluster.model_copy(update={"workers": 2, "cpus_per_worker": 1.0, "placement_timeout_s": 240.0})
    said = scaling.head.run(
        sys.executable, "-c", WAIT, scaling.gcs, cluster.model_dump_json(), cwd=ROOT, env=scaling.env, timeout=600
    )
    assert "the cluster has room for 0 of 2 workers; waiting 240 s at most for nodes to join" in said
    # Exactly two nodes were added, and they were removed after the wait.
    assert json.loads(said.splitlines()[-1]) == {"before": 1, "places": 2, "after": 1, "ever": 3}
