"""Communication between workers: shards, a gather that carries gradients, sums. With one worker, everything is a no-op.

Workers wait for each other in two ways. Between the collectives of a step, all workers do the same work. A worker that is later
than `give_up_after` allows must have hung, so the others raise an error. While one worker writes a checkpoint or waits for the
storage, the others wait in `barrier`, which has the long timeout of the process group itself.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.gaussian.distribution import Gaussian

# The group of all workers used by every collective except `barrier`; None is the default group.
_timed: dist.ProcessGroup | None = None
_gathered = 0
# Bytes. A digest has 64.
_LONGEST_TEXT = 256


def give_up_after(seconds: float, backend: str) -> None:
    """Make every collective except `barrier` raise (NCCL: end the process) if another worker is this many seconds late.

    All workers must call this, once.
    """
    global _timed
    if dist.is_available() and dist.is_initialized():
        # Creating the group has the same time limit.
        barrier()
        process_group = dist.new_group(backend=backend, timeout=timedelta(seconds=seconds))
        assert isinstance(process_group, dist.ProcessGroup)
        _timed = process_group


def group() -> dist.ProcessGroup | None:
    """The group made by `give_up_after`, for direct calls of torch.distributed; None is the default group."""
    return _timed


def world_size() -> int:
    """Number of workers; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This worker's number; 0 outside torch.distributed."""
    return dist.get_rank() if world_size() > 1 else 0


def shard_sizes(n: int, workers: int) -> list[int]:
    """Sizes of `workers` contiguous shards of n rows. They differ by at most one; larger shards come first."""
    return [n // workers + (r < n % workers) for r in range(workers)]


def shard(n: int) -> slice:
    """This worker's rows out of n."""
    sizes = shard_sizes(n, world_size())
    start = sum(sizes[: rank()])
    return slice(start, start + sizes[rank()])


class _GatherRows(torch.autograd.Function):
    """All-gather along the first dimension; backward sums the gradients of this worker's rows over all workers' losses."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        # Collectives need equal shapes: pad to the largest shard, then cut off the padding.
        padded = local.new_zeros((max(sizes), *local.shape[1:]))
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=_timed)
        _count((len(sizes) - 1) * padded.nbytes)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        # Every worker needs the sum over the workers, but only of its own rows: each sends each of the others that one's rows.
        # (Gloo has no reduce-scatter of its own: its version is an all-reduce, which sends twice as much.)
        grad: Tensor = grads[0].contiguous()
        own = ctx.sizes[rank()]
        parts = grad.new_empty((len(ctx.sizes) * own, *grad.shape[1:]))
        dist.all_to_all_single(parts, grad, [own] * len(ctx.sizes), ctx.sizes, group=_timed)
        _count(parts.nbytes * (len(ctx.sizes) - 1) // len(ctx.sizes))
        return parts.view(len(ctx.sizes), own, *grad.shape[1:]).sum(0), None


def _count(received: int) -> None:
    global _gathered
    _gathered += received


def gathered_bytes() -> int:
    """Bytes that this process has received so far in `gather_rows` and in its backward pass."""
    return _gathered


def gather_rows(local: Tensor, n: int) -> Tensor:
    """Gather the rows of all workers, in order.

    Args:
        local: (n_r, ...), this worker's `shard(n)` of the n rows.
        n: number of rows of all workers together.

    Returns:
        (n, ...). The gradient of a row is the *sum* over the workers' losses, so each worker's loss must be its share of the
        global loss.

    Raises:
        ValueError: `local` does not have the size of this worker's `shard(n)`.
    """
    sizes = shard_sizes(n, world_size())
    if len(local) != sizes[rank()]:
        raise ValueError(f"rank {rank()} holds {len(local)} rows, its shard of {n} has {sizes[rank()]}")
    if world_size() == 1:
        return local
    gathered: Tensor = _GatherRows.apply(local, sizes)  # type: ignore[assignment]
    return gathered


def gather_gaussians(own: list[Gaussian], n: int) -> list[Gaussian]:
    """`gather_rows` of several Gaussians, (n_r, D) → (n, D), in one exchange."""
    if world_size() == 1:
        return own
    everyone = gather_rows(torch.stack([gaussian.stacked() for gaussian in own], 1), n)
    return [Gaussian(everyone[:, k, 0], everyone[:, k, 1]) for k in range(len(own))]


def all_sum(value: Tensor) -> Tensor:
    """Sum over the workers, without gradient, as a new tensor."""
    value = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(value, group=_timed)
    return value


def average_gradients(modules: nn.Module) -> None:
    """Average over the workers, as DDP does for the encoder. DDP cannot do it here: the loss uses the modules too.

    A parameter that the loss did not use has the gradient zero, on any number of workers.
    """
    workers = world_size()
    for parameter in modules.parameters():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = all_sum(gradient) / workers


def average_rows(gradient: Tensor) -> None:
    """Replace a gradient by its mean over the workers, sending only the rows that are not zero on all of them.

    Args:
        gradient: (V, ...), changed in place. On a GPU, counting the rows would make the processor wait for it.
    """
    used = (gradient != 0).flatten(1).any(1).to(torch.uint8)
    dist.all_reduce(used, dist.ReduceOp.MAX, group=_timed)
    rows = used.nonzero()[:, 0]
    part = gradient[rows] / world_size()
    dist.all_reduce(part, group=_timed)
    gradient[rows] = part


def from_first(value: float, device: torch.device) -> float:
    """The number of rank 0, on every worker."""
    return float(text_from_first(repr(float(value)), device))


def text_from_first(text: str, device: torch.device) -> str:
    """The text of rank 0, of at most `_LONGEST_TEXT` bytes, on every worker."""
    if world_size() == 1:
        return text
    box = torch.tensor(list(text.encode().ljust(_LONGEST_TEXT, b"\0")), dtype=torch.uint8, device=device)
    dist.broadcast(box, 0, group=_timed)
    return bytes(box.tolist()).rstrip(b"\0").decode()


def barrier() -> None:
    """Wait for all workers, with the long timeout. Call it before a collective that follows the work of one worker alone."""
    if world_size() > 1:
        dist.barrier()
