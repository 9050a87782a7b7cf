"""The process group of a training run's workers, for Ray Train.

Ray's own TorchConfig does the same, but also imports torch in the two processes that only watch a run: the trial's driver and Ray
Train's controller. That costs two seconds and 180 MB in each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError
from ray.train.backend import Backend, BackendConfig

# Seconds for a dead or hanging worker to leave the group; Ray's default of 30 s is too long.
_LEAVE = 5.0
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


class _Gloo(Backend):
    # A worker sees all GPUs of its node, as NCCL needs it.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        url = worker_group.execute_single(0, _free_url)
        count, timeout = len(worker_group), timedelta(seconds=backend_config.timeout_s)
        ray.get([worker_group.execute_single_async(rank, _enter, url, rank, count, timeout) for rank in range(count)])

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        try:
            ray.get(worker_group.execute_async(_leave), timeout=_LEAVE)
        except GetTimeoutError:
            # Its processes are ended next.
            return


def _free_url() -> str:
    """A free port of this node."""
    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind(("", 0))
        return f"tcp://{f'[{host}]' if ':' in host else host}:{free.getsockname()[1]}"


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

    # By default gloo takes the address of the host's name, often 127.0.1.1, which other nodes cannot reach. They reach Ray's.
    if _GLOO_INTERFACE not in os.environ and (name := interface_with(ray.util.get_node_ip_address())) is not None:
        os.environ[_GLOO_INTERFACE] = name
    distributed.init_process_group("gloo", url, timeout, count, rank)


def interface_with(address: str) -> str | None:
    """The network interface of this machine that has an address; None if none has it."""
    return next((name for name, held in psutil.net_if_addrs().items() if any(one.address == address for one in held)), None)


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
