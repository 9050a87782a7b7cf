"""Copies from host memory to a device for which the host does not wait."""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the same shape and type on a device; for the CPU, the values themselves, not a copy.

    A GPU copies from pinned memory while the host goes on. From other memory, the host would wait for all work before the copy.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    device = torch.device(device)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """A small tensor on its way to the host.

    `read` waits for the work that the tensor depends on, and not for what was queued after it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._values = tensor.detach().to("cpu", non_blocking=True)
        self._arrived: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> list[float]:
        """The values of a tensor of one dimension."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()
