"""The process group of a training run's workers, for Ray Train.

Ray's own TorchConfig does the same, but also imports torch in the two processes that only watch a run: the trial's driver and Ray
Train's controller. That costs two seconds and 180 MB in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
from ray._common.network_utils import build_address
from ray.exceptions import GetTimeoutError
from ray.train._internal.utils import get_address_and_port
from ray.train.backend import Backend, BackendConfig

# Seconds for a dead or hanging worker to leave the group; Ray's default of 30 s is too long.
_LEAVE = 5.0


class _Gloo(Backend):
    # A worker sees all GPUs of its node, as NCCL needs it.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        url = "tcp://" + build_address(*worker_group.execute_single(0, get_address_and_port))
        count, timeout = len(worker_group), timedelta(seconds=backend_config.timeout_s)
        ray.get([worker_group.execute_single_async(rank, _enter, url, rank, count, timeout) for rank in range(count)])

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        try:
            ray.get(worker_group.execute_async(_leave), timeout=_LEAVE)
        except GetTimeoutError:
            # Its processes are ended next.
            return


@dataclass
class GlooConfig(BackendConfig):
    """Before the training function runs, all workers are in a group of gloo, and each has its GPU, if it has one, as current.

    Attributes:
        timeout_s: seconds after which the group's collectives give up.
    """

    timeout_s: float

    @property
    def backend_cls(self) -> type[Backend]:
        return _Gloo

    @property
    def train_func_context(self) -> Any:
        return _on_own_gpu


def _enter(url: str, rank: int, count: int, timeout: timedelta) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", url, timeout, count, rank)


def _leave() -> None:
    from torch import distributed

    if distributed.is_initialized() and distributed.get_world_size() > 1:
        distributed.destroy_process_group()


@contextmanager
def _on_own_gpu() -> Iterator[None]:
    import torch

    if torch.cuda.is_available():
        from ray.train.torch import get_device

        if (device := get_device()).type == "cuda":
            torch.cuda.set_device(device)
    yield
