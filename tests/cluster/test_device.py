"""What cluster.device means for the GPUs present; distributed/test_trials.py has a session with a GPU that cannot be used."""

from __future__ import annotations

import re
from typing import Any

import pytest
from conftest import ROOT

from pipeline.cluster.capacity import on_device
from pipeline.config.execution import ClusterParams
from pipeline.config.load import load_execution
from pipeline.utils.errors import UserError

CLUSTER = load_execution(ROOT / "execution.yaml").cluster
PLAIN, ONE, EIGHT = {"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 16.0, "GPU": 8.0}
NARROW = {"CPU": 0.5, "GPU": 1.0}


def cluster(**changes: Any) -> ClusterParams:
    return CLUSTER.model_copy(update={"workers": 2, **changes})


@pytest.mark.parametrize(
    ("nodes", "without_cuda", "changes", "workers", "fewest", "use_gpu", "said"),
    [
        ([PLAIN], None, {}, 2, None, False, None),
        ([ONE], None, {"device": "cpu"}, 2, None, False, None),
        ([ONE, ONE], None, {}, 2, None, True, None),
        ([EIGHT], None, {}, 2, None, True, None),
        ([EIGHT, PLAIN], None, {"workers": 8, "min_workers": 4}, 8, 4, True, None),
        # One GPU for two workers: it is used, and a line says so.
        ([ONE], None, {}, 1, None, True, "1 GPU for cluster.workers: 2, so 1 worker runs; set cluster.workers: 1, or"),
        ([ONE, PLAIN], None, {"min_workers": 2}, 1, 1, True, "1 GPU for cluster.workers: 2, so"),
        ([ONE, ONE], None, {"workers": 8, "min_workers": 1}, 2, 1, True, "2 GPUs for cluster.workers: 8, so 2 workers run; set"),
        # A GPU that cannot be used is left alone, and a line says so.
        ([ONE, ONE], "10.0.0.7", {}, 2, None, False, "2 GPUs not used: torch finds no CUDA on node 10.0.0.7; install"),
        ([NARROW, PLAIN], None, {}, 2, None, False, "1 GPU not used: no node has a GPU and 1 CPU; lower"),
        # As many as are asked for, or none.
        ([ONE], None, {"device": "cuda"}, 2, None, True, None),
    ],
)
def test_the_gpus_that_there_are_are_used_or_a_line_says_why_not(
    nodes: list[dict[str, float]],
    without_cuda: str | None,
    changes: dict[str, Any],
    workers: int,
    fewest: int | None,
    use_gpu: bool,
    said: str | None,
) -> None:
    params, gpu, line = on_device(cluster(**changes), nodes, without_cuda, may_grow=False)
    assert (params.workers, params.min_workers, gpu) == (workers, fewest, use_gpu)
    assert (line is None) == (said is None)
    if line and said:
        assert line.startswith(said)
        assert line.endswith(" (execution.yaml)")
        assert "\n" not in line


def test_cuda_that_cannot_be_had_is_one_line() -> None:
    cuda = cluster(device="cuda")
    with pytest.raises(UserError, match=re.escape("cluster.device: got 'cuda', but Ray finds no GPU on this machine; set auto")):
        on_device(cuda, [PLAIN], None, may_grow=False)
    with pytest.raises(UserError, match=re.escape("got 'cuda', but torch finds no CUDA on node 10.0.0.7; install")):
        on_device(cuda, [ONE], "10.0.0.7", may_grow=True)
    # A cluster may get nodes that have one; capacity.wait_for_places waits for them.
    assert on_device(cuda, [PLAIN], None, may_grow=True) == (cuda, True, None)
