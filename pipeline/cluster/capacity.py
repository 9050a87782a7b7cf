"""Places for workers on the nodes of a cluster, and what is missing where there are too few."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import ray

from pipeline.errors import UserError
from pipeline.execution import ClusterParams

# Seconds between two looks at a cluster that is too small.
_POLL = 2.0


def nodes() -> list[Mapping[str, float]]:
    """What each living node of the cluster has, by resource."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def wait_for_places(params: ClusterParams, use_gpu: bool, patience: float | None = None) -> int:
    """How many workers the cluster as a whole has room for, whoever has that room now.

    Args:
        patience: seconds to wait for it to grow to what is needed at least; `cluster.placement_timeout_s` if not given.

    Raises:
        UserError: it is still too small then; says what is missing.
    """
    deadline = time.monotonic() + (params.placement_timeout_s if patience is None else patience)
    fewest = params.min_workers or params.workers
    while True:
        there = nodes()
        places = worker_places(there, params.cpus_per_worker, use_gpu)
        if places >= fewest:
            return places
        if time.monotonic() >= deadline:
            have = f"{sum(node.get('CPU', 0) for node in there):g} CPU"
            have += f" and {sum(node.get('GPU', 0) for node in there):g} GPU" if use_gpu else ""
            raise UserError(
                f"the cluster cannot place {fewest} workers: each needs {params.cpus_per_worker:g} CPU"
                f"{' and 1 GPU' if use_gpu else ''} on one node, there are {have} on {len(there)}, which makes {places}; "
                "lower cluster.workers or add nodes (execution.yaml)"
            )
        time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))


def worker_places(nodes: Sequence[Mapping[str, float]], cpus: float, use_gpu: bool) -> int:
    """How many workers there is room for: none is spread over two nodes, so what is left over on each node does not add up."""

    def fit(have: float, need: float) -> int:
        # In the ten-thousandths that Ray counts in: 1.0 // 0.1 is 9.
        return round(have * 10_000) // max(1, round(need * 10_000))

    return sum(min(fit(node.get("CPU", 0), cpus), fit(node.get("GPU", 0), 1.0) if use_gpu else sys.maxsize) for node in nodes)
