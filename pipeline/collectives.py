"""What workers say to each other: shards, a gather that carries gradients, a sum. Everything is a no-op when alone.

Workers wait for each other in two ways. Between two collectives of a step all do the same work, so a worker that is later than
`give_up_after` allows has hung, and the others raise. While one worker writes a checkpoint or waits for the storage, the others
wait in `barrier`, which has the long timeout of the process group itself.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# The group of all workers in which every collective but `barrier` runs; None is the default group.
_hasty: dist.ProcessGroup | None = None


def give_up_after(seconds: float, backend: str) -> None:
    """Have every collective but `barrier` raise (NCCL: end the process) when another worker is that many seconds late.

    All workers call it, once.
    """
    global _hasty
    if world_size() > 1:
        # Making the group has the same limit.
        barrier()
        made = dist.new_group(backend=backend, timeout=timedelta(seconds=seconds))
        assert isinstance(made, dist.ProcessGroup)
        _hasty = made


def group() -> dist.ProcessGroup | None:
    """The group of `give_up_after`, for those who call torch.distributed themselves; None is the default group."""
    return _hasty


def world_size() -> int:
    """Number of workers, 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This worker's number, 0 outside torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


def shard_sizes(n: int, workers: int) -> list[int]:
    """Sizes of `workers` contiguous shards of n rows; they differ by at most one, the larger ones first."""
    return [n // workers + (r < n % workers) for r in range(workers)]


def shard(n: int) -> slice:
    """This worker's rows out of n."""
    sizes = shard_sizes(n, world_size())
    start = sum(sizes[: rank()])
    return slice(start, start + sizes[rank()])


class _GatherRows(torch.autograd.Function):
    """All-gather along the first dimension; backward sums what every worker's loss says about this worker's rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        # Collectives want equal shapes: pad to the largest shard, cut the padding away afterwards.
        padded = local.new_zeros((max(sizes), *local.shape[1:]))
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=_hasty)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        grad: Tensor = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=_hasty)
        start = sum(ctx.sizes[: rank()])
        return grad[start : start + ctx.sizes[rank()]], None


def gather_rows(local: Tensor, n: int) -> Tensor:
    """The rows of all workers, in order.

    Args:
        local: (n_r, ...), this worker's `shard(n)` of the n rows.
        n: rows of all workers together.

    Returns:
        (n, ...). The gradient of a row is the *sum* over the workers' losses, so each worker's loss must be its share of the
        global loss.

    Raises:
        ValueError: `local` is not the shard that `shard(n)` gives this worker.
    """
    sizes = shard_sizes(n, world_size())
    if len(local) != sizes[rank()]:
        raise ValueError(f"rank {rank()} holds {len(local)} rows, its shard of {n} has {sizes[rank()]}")
    if world_size() == 1:
        return local
    gathered: Tensor = _GatherRows.apply(local, sizes)  # type: ignore[assignment]
    return gathered


def all_sum(value: Tensor) -> Tensor:
    """Sum over the workers, without gradient, in a tensor of its own."""
    value = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(value, group=_hasty)
    return value


def from_first(value: float, device: torch.device) -> float:
    """Rank 0's number, on every worker."""
    box = torch.tensor([value], dtype=torch.float64, device=device)
    if world_size() > 1:
        dist.broadcast(box, 0, group=_hasty)
    return float(box.item())


def text_from_first(text: str, device: torch.device) -> str:
    """Rank 0's text, on every worker."""
    if world_size() == 1:
        return text
    sent = text.encode()
    length = int(from_first(float(len(sent)), device))
    if not length:
        return ""
    box = torch.zeros(length, dtype=torch.uint8, device=device)
    if rank() == 0:
        box += torch.tensor(list(sent), dtype=torch.uint8, device=device)
    dist.broadcast(box, 0, group=_hasty)
    return bytes(box.tolist()).decode()


def barrier() -> None:
    """Wait for all workers with the long timeout: call it before a collective that follows the work of one worker alone."""
    if world_size() > 1:
        dist.barrier()
