"""Training runs that follow a cluster: they ask it to grow, take up new workers, and leave a node before it is removed.

The global batch and its gradients do not depend on the number of workers (`pipeline.distributed.collectives`). So a run may go on
with another number from any checkpoint. Ray Train's own elastic runs end the workers wherever they are, and what they did since
the last checkpoint is lost. Here the first worker asks all to pause: they write a checkpoint at the next step, end, and are
started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import ray

from pipeline.cluster.capacity import demand, free_places
from pipeline.cluster.ray_private import leaving_nodes
from pipeline.config.execution import ClusterParams

# Seconds between two looks at the cluster.
_LOOK = 2.0
# Seconds that room must have been free before a run takes it. Others may be about to use it, and nodes come one after another.
_SETTLED = 12.0
# Seconds until the places of workers that have just ended count as free.
_FREED = 15.0


def workers_after_move(params: ClusterParams, places: int, free_now: Callable[[], int], patience: float = _FREED) -> int:
    """Number of workers with which a paused run restarts.

    It does not wait for more room than it needs: other runs may have taken what was free when it left.

    Args:
        places: how many the whole cluster has, including those in use.
        free_now: gives the number of places that nobody uses.
        patience: seconds to wait for as many workers as fit into the cluster.
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
        with demand(self._params, self._use_gpu) as more:
            while not self.why_move and not self._over.wait(_LOOK):
                try:
                    more.ask(self._missing)
                    self.why_move = self._look()
                except Exception:
                    # Ray's head does not answer. Training goes on without it, and this is tried again.
                    continue

    def _look(self) -> str:
        leaving = leaving_nodes()
        every = ray.nodes() if leaving else []
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in every if node["NodeID"] in leaving}
        free = free_places(self._params, self._use_gpu) if self._missing else 0
        return self.reason_to_move(addresses, free, time.monotonic())

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
        return f"there is room for {room} more" if room and now - self._since >= _SETTLED else ""
