"""Writes tensors as safetensors and reads them back; errors of the operating system are raised as `OSError`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.utils.errors import StorageError


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors of any layout, and compare the file with them.

    Raises:
        OSError: the file cannot be written, for example because the disk is full.
        StorageError: the file has other bytes than were written.
    """
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    with safe_open(path, "pt") as file:
        for name, tensor in tensors.items():
            if not np.array_equal(_bytes(file.get_tensor(name)), _bytes(tensor)):
                raise StorageError(
                    f"{path}: {name} differs from what was written; the disk or its file server is faulty, use another"
                )


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """A tensor's bytes, because a NaN does not equal itself; numpy's, because torch would compare them in threads of its own."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
