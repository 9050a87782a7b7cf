"""The latest checkpoint: weights, optimizer state, random numbers and position, as safetensors and JSON. No pickle.

Layout of a checkpoint folder: model.safetensors, optimizer.safetensors, random.safetensors, state.json, SHA256SUMS, and best/,
the best encoder so far, once one was scored. So a run's record of its best and the weights are written together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline import collectives
from pipeline.files import check_sums, read_json, write_directory, write_sums
from pipeline.trial import PREVIOUS
from pipeline.weights import write_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    device: torch.device,
    write_best: Callable[[Path], object],
) -> None:
    """Write a checkpoint, whole or not at all; the one before it stays as `previous/`. Every worker calls it, rank 0 writes.

    Args:
        write_best: writes `best/` into the checkpoint's folder. It is called before the last checkpoint is replaced.
    """
    random = _random_states(device)
    if collectives.rank() == 0:
        with write_directory(folder, keep=folder.with_name(PREVIOUS)) as new:
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
    """Restore model, optimizer and this worker's random numbers; returns the state given to `save`.

    With another number of workers than at the time of writing, the random numbers cannot be the same and are left as seeded.

    Raises:
        UserError: a file is missing or differs from its sum.
    """
    check_sums(folder)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    moments = load_file(folder / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        saved = {key: moments[f"{key}.{name}"] for key in _MOMENTS if f"{key}.{name}" in moments}
        if saved:
            optimizer.state[parameter] = {
                # The step counter of a fused optimizer lives on the parameter's device too.
                key: value.to(parameter.device)
                for key, value in saved.items()
            }
    random = load_file(folder / "random.safetensors")
    if len(random["cpu"]) == collectives.world_size():
        # Copied, because torch reads the state from the start of the storage, whatever row the tensor is.
        torch.set_rng_state(random["cpu"][collectives.rank()].clone())
        if device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"][collectives.rank()].clone(), device)
    return read_json(folder / "state.json")


def _random_states(device: torch.device) -> dict[str, Tensor]:
    """Random states of all workers, (W, bytes) a device."""
    workers = collectives.world_size()
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    # Through the training device, because NCCL gathers nothing else.
    return {name: collectives.gather_rows(state[None].to(device), workers).cpu() for name, state in states.items()}
