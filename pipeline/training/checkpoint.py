"""Save and load checkpoints: weights, optimizer state, random states and position, as safetensors and JSON, without pickle.

Layout of a checkpoint folder: model.safetensors, optimizer.safetensors, random.safetensors, state.json, SHA256SUMS, and best/,
the best encoder so far, once one was scored. So the record of the best score and its weights are written together or not at all.

The training thread only copies what a checkpoint consists of, and goes on. Another thread writes the copy, waits until it has
reached the disk, makes it the latest checkpoint, and uploads it if the storage is remote.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.distributed import collectives
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import check_sums, read_json, write_sums
from pipeline.utils.safetensors_io import write_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Weights = Callable[[nn.Module], Mapping[str, Tensor]]
"""The weights that a module had when `save` was called, by their names in its `state_dict`."""


class Checkpoints:
    """Saves the checkpoints of a run in a thread of the first worker; at most one is being written at any time.

    Args:
        model: all that is trained.
    """

    def __init__(self, folder: TrialFolder, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._folder, self._model, self._optimizer, self._device = folder, model, optimizer, device
        self._snapshot = Snapshot()
        self._thread = ThreadPoolExecutor(1, f"{threading.current_thread().name}-checkpoint")
        self._write: Future[None] | None = None

    def close(self) -> None:
        """Complete a write in progress; after an error, too, since then fewer steps are lost."""
        self._thread.shutdown(wait=True)

    def save(self, state: dict[str, Any], write_best: Callable[[Path, Weights], object]) -> None:
        """Copy the run's state and begin to write it, once the last checkpoint is complete. All workers must call this.

        Args:
            state: JSON values, which `load` returns.
            write_best: writes `best/` into the new checkpoint's folder. It is called in the thread, before the last checkpoint is
                replaced.

        Raises:
            Exception: the last checkpoint could not be written.
        """
        random = _random_states(self._device)
        if collectives.rank() == 0:
            self._complete()
            moments = self._moments()
            self._snapshot.take((*self._model.state_dict(keep_vars=True).values(), *moments.values()))
            self._write = self._thread.submit(self._publish, moments, random, json.dumps(state), write_best)
        # The first worker may have waited for a slow storage.
        collectives.barrier()

    def check(self) -> None:
        """Raise the error with which the last write ended, if it did; on the first worker."""
        if self._write is not None and self._write.done():
            self._complete()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete. All workers must call this.

        Raises:
            Exception: it could not be written.
        """
        self._complete()
        collectives.barrier()

    def _complete(self) -> None:
        if self._write is not None:
            self._write.result()
            self._write = None

    def _moments(self) -> dict[str, Tensor]:
        """The optimizer's own tensors, by their names in optimizer.safetensors."""
        return {
            f"{key}.{name}": value
            for name, parameter in self._model.named_parameters()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }

    def _publish(
        self, moments: dict[str, Tensor], random: dict[str, Tensor], state: str, write_best: Callable[[Path, Weights], object]
    ) -> None:
        """Write the snapshot as a checkpoint, atomically, and keep the one before it."""
        copies = self._snapshot
        with self._folder.new_checkpoint() as new:
            write_tensors(copies.of_module(self._model), new / "model.safetensors")
            write_tensors(copies.of(moments), new / "optimizer.safetensors")
            write_tensors(random, new / "random.safetensors")
            (new / "state.json").write_text(state, encoding="utf-8")
            write_best(new, copies.of_module)
            write_sums(new)
        self._folder.send_checkpoint()


class Snapshot:
    """Copies of tensors on the CPU. A tensor's copy has the same memory in all snapshots, pinned if the tensor is on a GPU."""

    def __init__(self) -> None:
        # By identity: a tensor's hash is that of the object.
        self._copies: dict[Tensor, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    @torch.no_grad()
    def take(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors. Later changes to them do not change the copies, although a GPU may not have made them yet."""
        for tensor in tensors:
            if tensor not in self._copies:
                self._copies[tensor] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[tensor].copy_(tensor, non_blocking=True)
            if tensor.is_cuda and self._copied is None:
                self._copied = torch.cuda.Event(blocking=True)
        if self._copied is not None:
            # Copies and later steps are in one stream, so the GPU makes the copies first.
            self._copied.record()

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The copies of the tensors, by the same names, once they are made."""
        if self._copied is not None:
            self._copied.synchronize()
        return {name: self._copies[tensor] for name, tensor in tensors.items()}

    def of_module(self, module: nn.Module) -> dict[str, Tensor]:
        """The copies of a module's parameters and buffers, by their names in its `state_dict`."""
        return self.of(module.state_dict(keep_vars=True))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> dict[str, Any]:
    """Restore the model, the optimizer and this worker's random state; returns the state given to `save`.

    If the number of workers has changed since `save`, the random states cannot be restored and stay as seeded.

    Raises:
        UserError: a file is missing or does not match its checksum.
    """
    check_sums(folder)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    moments = load_file(folder / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        # For a fused optimizer, the step counter must be on the parameter's device too.
        saved = {key: moments[f"{key}.{name}"].to(parameter.device) for key in _MOMENTS if f"{key}.{name}" in moments}
        if saved:
            optimizer.state[parameter] = saved
    random = load_file(folder / "random.safetensors")
    if len(random["cpu"]) == collectives.world_size():
        # Clone the row, because torch reads the state from the start of the storage even if the tensor is a later row.
        torch.set_rng_state(random["cpu"][collectives.rank()].clone())
        if device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"][collectives.rank()].clone(), device)
    return read_json(folder / "state.json")


def _random_states(device: torch.device) -> dict[str, Tensor]:
    """Random states of all W workers: for each kind of device (W, bytes)."""
    workers = collectives.world_size()
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    # Gather on the training device, because NCCL supports no other.
    return {name: collectives.gather_rows(state[None].to(device), workers).cpu() for name, state in states.items()}
