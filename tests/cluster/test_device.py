"""What cluster.device means for the GPUs present; distributed/test_trials.py has a session with a GPU that cannot be used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.cluster import capacity, session
from pipeline.cluster.capacity import on_device
from pipeline.cluster.worker import train_as_worker
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import installed
from pipeline.config.load import load_execution
from pipeline.utils.errors import RunError, UserError
from tests.cluster.hosts import hosts_can_be_made
from tests.conftest import ROOT

CLUSTER = load_execution(ROOT / "execution.yaml").cluster
PLAIN, ONE, EIGHT = {"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 16.0, "GPU": 8.0}
NARROW = {"CPU": 0.5, "GPU": 1.0}
NO_CUDA = "torch finds no CUDA on node 10.0.0.7; install a CUDA build of torch there"


def cluster(**changes: Any) -> ClusterParams:
    return CLUSTER.model_copy(update={"workers": 2, **changes})


@pytest.mark.parametrize(
    ("nodes", "unusable", "changes", "runs", "said"),
    [
        ([PLAIN], None, {}, (2, None, False), None),
        ([EIGHT], None, {}, (2, None, True), None),
        ([EIGHT, PLAIN], None, {"workers": 8, "min_workers": 4}, (8, 4, True), None),
        # One GPU for two workers: it is used, and a line says so.
        ([ONE], None, {}, (1, None, True), "1 GPU for cluster.workers: 2, so 1 worker runs; set cluster.workers: 1, or"),
        ([ONE, ONE], None, {"workers": 8, "min_workers": 1}, (2, 1, True), "2 GPUs for cluster.workers: 8, so 2 workers run"),
        # A GPU that cannot be used is left alone, and a line says so.
        ([ONE, ONE], NO_CUDA, {}, (2, None, False), "2 GPUs not used: torch finds no CUDA on node 10.0.0.7; install"),
        ([NARROW, PLAIN], None, {}, (2, None, False), "1 GPU not used: no node has a GPU and 1 CPU; lower"),
        # As many as are asked for, or none.
        ([ONE], None, {"device": "cuda"}, (2, None, True), None),
    ],
)
def test_the_gpus_that_there_are_are_used_or_a_line_says_why_not(
    nodes: list[dict[str, float]], unusable: str | None, changes: dict[str, Any], runs: tuple[Any, ...], said: str | None
) -> None:
    params, gpu, line = on_device(cluster(**changes), nodes, unusable, may_grow=False)
    assert (params.workers, params.min_workers, gpu) == runs
    assert (line is None) == (said is None)
    if line and said:
        assert line.startswith(said)
        assert line.endswith(" (execution.yaml)")
        assert "\n" not in line


def test_cuda_that_cannot_be_had_is_one_line() -> None:
    cuda = cluster(device="cuda")
    with pytest.raises(UserError, match=re.escape("cluster.device: got 'cuda', but Ray finds no GPU on this machine; set auto")):
        on_device(cuda, [PLAIN], None, may_grow=False)
    # A cluster may get nodes that have one; capacity.wait_for_places waits for them.
    assert on_device(cuda, [PLAIN], None, may_grow=True) == (cuda, True, None)


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        # torch 2.13 of PyPI on a V100, A100, RTX 3090, H100, B200 and what comes after.
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", (7, 0), False),
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", (8, 9), True),
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", (13, 0), True),
        ("sm_86", (8, 0), False),
        # With a letter, that GPU and no other.
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("gfx90a gfx942", (9, 4), True),
    ],
)
def test_a_build_of_torch_runs_on_the_gpus_it_was_built_for(built: str, capability: tuple[int, int], runs: bool) -> None:
    assert session.has_kernels(built.split(), capability) == runs


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"available": False}, "torch finds no CUDA on node {node}; install a CUDA build"),
        ({"capability": (7, 0)}, "torch on node {node} has no kernels for its Tesla V100 (sm_80 sm_90); install a build"),
        ({"nccl": False}, "torch on node {node} has no NCCL, which"),
        ({}, None),
    ],
)
def test_a_node_says_why_its_torch_cannot_train_on_its_gpus(
    found: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's answers on machines that are not here; test_trials asks the torch that is, on a node that claims a GPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: found.get("available", True))
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda number: found.get("capability", (8, 0)) if number else (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "Tesla V100")
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: found.get("nccl", True))
    fault = session._gpu_fault()
    assert (fault is None) == (said is None)
    if fault and said:
        assert fault.startswith(said)
        assert "{" not in fault.format(node="10.0.0.7")


def test_a_worker_refuses_a_node_whose_torch_cannot_use_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of the trial is read; tests/distributed/test_trials.py has a node with other versions."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RunError, match=r"^torch finds no CUDA on node [\d.]+; install a CUDA build of torch there$"):
        train_as_worker({"standing": True, "versions": installed(), "use_gpu": True}, 0)


def test_who_waits_for_nodes_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[PLAIN], [PLAIN], [PLAIN, PLAIN]])
    monkeypatch.setattr(capacity, "nodes", lambda: next(looks))
    monkeypatch.setattr(capacity, "_LOOK", 0.01)
    # Ray does not run here, so the requests are noted where its autoscaler would get them.
    asked: list[int] = []
    monkeypatch.setattr(capacity.Demand, "ask", lambda self, workers: asked.append(workers))
    said: list[str] = []
    params = cluster(workers=6, cpus_per_worker=1.0)
    assert capacity.wait_for_places(params, False, 60.0, said.append) == 8
    assert said == ["the cluster has room for 4 of 6 workers; waiting 60 s at most for nodes to join"]
    # All workers while it waits, and nothing afterwards.
    assert asked == [6, 6, 0]
    monkeypatch.setattr(capacity, "nodes", lambda: [PLAIN])
    with pytest.raises(UserError, match="cannot place 6 workers"):
        capacity.wait_for_places(params, False, 0.0, said.append)
    assert len(said) == 1
    assert not ray.is_initialized()


def test_a_container_s_limit_counts_and_not_the_machine_s_cores(tmp_path: Path) -> None:
    """As Docker and Kubernetes show the limit of a container in it."""
    hosts_can_be_made()
    machine = os.cpu_count() or 1
    code = f"""
import os, pathlib
from pipeline.utils.cores import cores, machine_cores
os.environ.pop("OMP_NUM_THREADS", None)
limits = pathlib.Path("{tmp_path}/cpu.max")
for limit in ("150000 100000", "50000 100000", "{machine + 1}00000 100000", "max 100000"):
    limits.write_text(limit)
    print(machine_cores(), cores())
"""
    command = ["unshare", "--mount", "sh", "-ec", 'mount --bind "$1" /sys/fs/cgroup; exec "$2" -c "$3"', "sh"]
    done = subprocess.run([*command, str(tmp_path), sys.executable, code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split("\n")[:-1] == [f"{cores} {cores}" for cores in (1, 1, machine, machine)], done.stderr
