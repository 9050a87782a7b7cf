"""One optimizer step's work on one worker: its share of a global batch → gradients, all at once or in micro-batches.

Shapes: n triplets in the global batch, n_r of them on this worker, m sentences to encode, D dimensions.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline import collectives
from pipeline.blocks import TokenBlocks, by_length, lay_out
from pipeline.data.tokens import TokenStore
from pipeline.encoder import GaussianEncoder
from pipeline.gaussian import Gaussian
from pipeline.objectives import Objective, same_premise
from pipeline.params import SamePremise, TrainParams

HEADS = ("mean_head.", "variance_head.")
"""How the names of the heads' parameters begin."""
FACTOR = "factor"
"""Key of a parameter group: its learning rate as a multiple of the schedule's."""


class BatchEncoder(nn.Module):
    """The encoder as DDP wants it, one forward call for m sentences: (m, 2, D), mean and log-variance."""

    def __init__(self, encoder: GaussianEncoder, *, bf16: bool) -> None:
        super().__init__()
        self.encoder, self.bf16 = encoder, bf16

    def forward(self, batch: TokenBlocks) -> Tensor:
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            encoded = self.encoder(batch)
        # Out of bf16: the loss needs the digits.
        precise = torch.promote_types(encoded.mean.dtype, torch.float32)
        return torch.stack((encoded.mean.to(precise), encoded.log_var.to(precise)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """This worker's rows of a global batch.

    Attributes:
        triplets: (n_r, 4) sentence numbers.
        n: rows of the global batch.
        hidden: (n_r, n) bool, columns of block E that a row does not count; None for none.
    """

    triplets: NDArray[np.int32]
    n: int
    hidden: Tensor | None


def share_of(triplets: NDArray[np.int32], how: SamePremise) -> Share:
    """This worker's share of a global batch of (n, 4) triplets; `how` is the parameter train.same_premise.

    A triplet that stands in the batch twice (train.not_longer_share) is never a negative of itself.
    """
    own = collectives.shard(len(triplets))
    _, pairs = np.unique(triplets[:, :2], axis=0, return_inverse=True)
    repeated = len(pairs) > pairs.max() + 1
    hidden: Tensor | None = None
    if how == "mask" or repeated:
        alike = torch.from_numpy(triplets[:, 0].copy() if how == "mask" else pairs.reshape(-1))
        hidden = same_premise(alike[own], alike, own.start)
    return Share(triplets=triplets[own], n=len(triplets), hidden=hidden)


def optimizer_for(model: nn.Module, params: TrainParams, learning_rate: float) -> torch.optim.AdamW:
    """Fused AdamW; vectors (biases, LayerNorm) are not decayed, heads learn at `head_rate_factor` times the rate."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = []
    for heads, factor in ((False, 1.0), (True, params.head_rate_factor)):
        own = [p for name, p in trained if name.startswith(HEADS) == heads]
        groups += [
            {"params": [p for p in own if p.ndim >= 2], "weight_decay": params.weight_decay, FACTOR: factor},
            {"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0, FACTOR: factor},
        ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    set_rate(optimizer, learning_rate)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The learning rate of the next step, for each group times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group[FACTOR]


def accumulate_gradients(
    module: nn.Module, objective: Objective, store: TokenStore, share: Share, params: TrainParams, *, scale: float
) -> Tensor:
    """Add the gradient of `scale` × this worker's share of the loss to the parameters' gradients.

    With more sentences than `params.micro_batch` on any worker, by gradient caching: encode micro-batch after micro-batch without
    a graph, take the gradient of the loss with respect to the representations, encode each again with a graph and the same random
    numbers, and go backward from the cached gradient. Activations of one micro-batch are held at a time, the gradient is that.

    Args:
        module: a `BatchEncoder`, or DDP around one.

    Returns:
        Σ over this worker's rows of the row loss, (), detached.
    """
    device = next(module.parameters()).device
    columns = objective.sentences(share.triplets)
    wanted = np.concatenate(columns)
    there = np.flatnonzero(wanted >= 0)
    parts = by_length(store, wanted[there], params.micro_batch)
    batches = [lay_out(store, wanted[there[part]], params.length_groups, device) for part in parts]
    places = torch.from_numpy(there[np.concatenate(parts)]).to(device)

    def loss_of(encoded: Tensor) -> Tensor:
        """encoded: (m, 2, D), micro-batch after micro-batch."""
        # Rows without a sentence hold zeros, which the objective leaves out.
        placed = encoded.new_zeros((len(wanted), *encoded.shape[1:])).index_copy(0, places, encoded)
        roles = [Gaussian(part[:, 0], part[:, 1]) for part in placed.split(len(share.triplets))]
        present = [torch.from_numpy(column >= 0).to(device) for column in columns]
        hidden = None if share.hidden is None else share.hidden.to(device)
        return objective.loss(roles, present, share.n, hidden)

    # Decided by the largest share, so that all workers call the same collectives in the same order.
    most = len(columns) * collectives.shard_sizes(share.n, collectives.world_size())[0]
    if params.micro_batch is None or most <= params.micro_batch:
        loss = loss_of(module(batches[0]))
        (loss * scale).backward()
        return loss.detach()
    ddp = module if isinstance(module, DistributedDataParallel) else None
    encoder: nn.Module = module if ddp is None else ddp.module
    states: list[tuple[Tensor, Tensor | None]] = []
    encoded: list[Tensor] = []
    with torch.no_grad():
        for batch in batches:
            states.append(_random_state(device))
            encoded.append(encoder(batch))
    cached = torch.cat(encoded).requires_grad_()
    loss = loss_of(cached)
    (loss * scale).backward()
    assert cached.grad is not None
    # The last micro-batch leaves the random numbers where the first pass left them.
    for batch, state, grad in zip(batches, states, cached.grad.split([len(part) for part in parts]), strict=True):
        _set_random_state(state, device)
        # DDP sums over the workers once, in the backward pass of the last one.
        with contextlib.nullcontext() if ddp is None or batch is batches[-1] else ddp.no_sync():
            module(batch).backward(grad)
    return loss.detach()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
