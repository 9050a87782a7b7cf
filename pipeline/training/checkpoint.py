"""Save and load checkpoints: weights, optimizer state, random states and position, as safetensors and JSON, without pickle.

Layout of a checkpoint folder: model.safetensors, optimizer.safetensors, random.safetensors, state.json, SHA256SUMS, and best/,
the best encoder so far, once one was scored. So the record of the best score and its weights are written together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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


def save(
    folder: TrialFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    device: torch.device,
    write_best: Callable[[Path], object],
) -> None:
    """Write a checkpoint atomically and keep the one before it. All workers must call this; rank 0 writes.

    Args:
        write_best: writes `best/` into the new checkpoint's folder. It is called before the last checkpoint is replaced.
    """
    random = _random_states(device)
    if collectives.rank() == 0:
        with folder.new_checkpoint() as new:
            write_tensors(model.state_dict(), new / "model.safetensors")
            moments: dict[str, Tensor] = {}
            for name, parameter in model.named_parameters():
                for key, value in optimizer.state.get(parameter, {}).items():
                    moments[f"{key}.{name}"] = value
            write_tensors(moments, new / "optimizer.safetensors")
            write_tensors(random, new / "random.safetensors")
            (new / "state.json").write_text(json.dumps(state), encoding="utf-8")
            write_best(new)
            write_sums(new)
    collectives.barrier()


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
        saved = {key: moments[f"{key}.{name}"] for key in _MOMENTS if f"{key}.{name}" in moments}
        if saved:
            optimizer.state[parameter] = {
                # For a fused optimizer, the step counter must be on the parameter's device too.
                key: value.to(parameter.device)
                for key, value in saved.items()
            }
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
