"""One optimizer step on one worker: from its share of a global batch to gradients, either at once or in micro-batches.

Shapes: n rows in the global batch, n_r of them on this worker, m sentences to encode, D dimensions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.config.params import TrainParams
from pipeline.data.token_store import TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.families.objective import Batch, Objective
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import TokenBlocks, by_length, lay_out

ENCODER, OBJECTIVE = "encoder", "objective"
"""Names of the encoder and of the objective's own modules, where both are trained."""
MEAN_HEAD = "mean_head."
HEADS = (MEAN_HEAD, "variance_head.", f"{OBJECTIVE}.")
"""Prefixes of the names of parameters that are not pretrained: the heads, and the objective's own modules."""
FACTOR = "factor"
"""Key of a parameter group: the ratio of its learning rate to the scheduled one."""


class BatchEncoder(nn.Module):
    """The encoder in the form DDP needs: one forward call for m sentences returns what the loss needs of each of them, (m, ...).

    Args:
        represent: (encoder, blocks) → (m, ...). By default mean and log-variance, (m, 2, D).
    """

    def __init__(
        self, encoder: GaussianEncoder, *, bf16: bool, represent: Callable[[GaussianEncoder, TokenBlocks], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.bf16, self.represent = encoder, bf16, represent or (lambda encoder, blocks: encoder(blocks).stacked())

    @property
    def word_embeddings(self) -> list[Tensor]:
        """(V, H) of each backbone, if they are trained."""
        # By name, and not by transformers' class: importing that one brings torch's compiler, which changes the environment.
        lookups: list[Any] = [getattr(backbone, "get_input_embeddings", None) for backbone in self.encoder.towers]
        layers = [lookup() for lookup in lookups if lookup is not None]
        return [layer.weight for layer in layers if isinstance(layer, nn.Embedding) and layer.weight.requires_grad]

    def forward(self, batch: TokenBlocks) -> Tensor:
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            encoded = self.represent(self.encoder, batch)
        # Convert from bf16: the loss needs more digits.
        return encoded.to(torch.promote_types(encoded.dtype, torch.float32))


def data_parallel(module: BatchEncoder) -> DistributedDataParallel:
    """DDP around a `BatchEncoder`, in the process group of the collectives; `accumulate_gradients` does what DDP leaves out here.

    On processors DDP leaves out the word embeddings. Their gradient is half of all gradients of a small encoder, but only the
    rows of words in the batch are not zero. DDP would send all of it, and last, when no computation hides it.
    """
    embeddings = module.word_embeddings
    if embeddings and embeddings[0].device.type == "cpu":
        left_out = [name for name, parameter in module.named_parameters() if any(parameter is one for one in embeddings)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, left_out)  # pyright: ignore[reportPrivateUsage]
    return DistributedDataParallel(
        module, process_group=collectives.group(), forward_sync_buffers=False, gradient_as_bucket_view=True
    )


def together(encoder: GaussianEncoder, modules: nn.Module | None) -> nn.Module:
    """All that is trained, as one module; the encoder itself if the objective has no modules of its own."""
    return encoder if modules is None else nn.ModuleDict({ENCODER: encoder, OBJECTIVE: modules})


def new_parts(encoder: GaussianEncoder, objective: Objective) -> tuple[str, ...]:
    """Those of `HEADS` that do not start as what the objective needs."""
    kept = objective.pretrained_heads(encoder.params)
    return tuple(name for name in HEADS if name not in kept)


def optimizer_for(model: nn.Module, params: TrainParams, learning_rate: float, new: tuple[str, ...]) -> torch.optim.AdamW:
    """Fused AdamW; no weight decay for vectors (biases, LayerNorm), and `head_rate_factor` times the rate for what is new.

    Args:
        model: an encoder, or what `together` returns.
        new: prefixes of the names of its new parameters.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = []
    for heads, factor in ((False, 1.0), (True, params.head_rate_factor)):
        members = [p for name, p in trained if name.removeprefix(f"{ENCODER}.").startswith(new) == heads]
        groups += [
            {"params": [p for p in members if p.ndim >= 2], "weight_decay": params.weight_decay, FACTOR: factor},
            {"params": [p for p in members if p.ndim < 2], "weight_decay": 0.0, FACTOR: factor},
        ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    set_rate(optimizer, learning_rate)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next step, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group[FACTOR]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """This worker's share of a global batch, its sentences on the device.

    Making one never waits for the device, so the next batch is prepared while the device computes a step.

    Attributes:
        micro_batches: the sentences that exist, shortest first.
        places: (m,) where the sentences of the micro-batches belong in the rows of `batch.sentences`, end to end.
        tokens: number of tokens of the sentences, without padding.
    """

    batch: Batch
    micro_batches: Sequence[TokenBlocks]
    places: Tensor
    tokens: int

    @staticmethod
    def of(store: TokenStore, batch: Batch, params: TrainParams, device: torch.device) -> DeviceBatch:
        """Lay the sentences out and start to copy them."""
        sentences = np.concatenate(batch.sentences)
        existing = np.flatnonzero(sentences >= 0)
        parts = by_length(store, sentences[existing], params.micro_batch)
        return DeviceBatch(
            batch=batch,
            micro_batches=[lay_out(store, sentences[existing[part]], params.length_groups, device) for part in parts],
            places=to_device(existing[np.concatenate(parts)], device),
            tokens=int(store.lengths_of(sentences[existing]).sum()),
        )


def accumulate_gradients(
    module: nn.Module, given: DeviceBatch, params: TrainParams, *, scale: float, modules: nn.Module | None = None
) -> Tensor:
    """Add the gradient of `scale` × this worker's share of the loss to the parameters' gradients.

    If any worker has more sentences than `params.micro_batch`, this uses gradient caching: encode one micro-batch after another
    without a graph, take the gradient of the loss with respect to the representations, encode each micro-batch again with a graph
    and the same random numbers, and backpropagate the cached gradient. The gradient is the same, but only the activations of one
    micro-batch are in memory. The host never waits for the device.

    Args:
        module: a `BatchEncoder`, or DDP around one.
        given: this worker's share of a global batch.
        modules: the objective's own modules; their gradients, too, are averaged over the workers.

    Returns:
        Sum of the row losses over this worker's rows, (), detached.
    """
    batch, micro_batches = given.batch, given.micro_batches
    counts = [len(numbers) for numbers in batch.sentences]

    def loss_of(encoded: Tensor) -> Tensor:
        """`encoded`: (m, ...), in the order of the micro-batches."""
        # Rows without a sentence are zero; the objective ignores them.
        placed = encoded.new_zeros((sum(counts), *encoded.shape[1:])).index_copy(0, given.places, encoded)
        return batch.loss(placed.split(counts), modules)

    # The largest share decides, so that all workers call the same collectives in the same order.
    most = len(batch.sentences) * collectives.shard_sizes(batch.n, collectives.world_size())[0]
    if params.micro_batch is None or most <= params.micro_batch:
        loss = loss_of(module(micro_batches[0]))
        (loss * scale).backward()
    else:
        loss = _by_gradient_caching(module, micro_batches, loss_of, scale)
    if isinstance(module, DistributedDataParallel) and module.parameters_to_ignore:
        assert isinstance(module.module, BatchEncoder)
        for parameter in module.module.word_embeddings:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            collectives.average_rows(parameter.grad)
    if modules is not None:
        collectives.average_gradients(modules)
    return loss.detach()


def _by_gradient_caching(
    module: nn.Module, micro_batches: Sequence[TokenBlocks], loss_of: Callable[[Tensor], Tensor], scale: float
) -> Tensor:
    """Add the gradients by gradient caching (see `accumulate_gradients`); returns the loss."""
    device = micro_batches[0].ids.device
    ddp = module if isinstance(module, DistributedDataParallel) else None
    encoder: nn.Module = module if ddp is None else ddp.module
    states: list[tuple[Tensor, Tensor | None]] = []
    encoded: list[Tensor] = []
    with torch.no_grad():
        for batch in micro_batches:
            states.append(_random_state(device))
            encoded.append(encoder(batch))
    cached = torch.cat(encoded).requires_grad_()
    loss = loss_of(cached)
    (loss * scale).backward()
    assert cached.grad is not None
    after_loss = _random_state(device)
    for batch, state, grad in zip(micro_batches, states, cached.grad.split([len(part) for part in encoded]), strict=True):
        _set_random_state(state, device)
        # DDP sums over the workers only once, in the backward pass of the last micro-batch.
        with contextlib.nullcontext() if ddp is None or batch is micro_batches[-1] else ddp.no_sync():
            module(batch).backward(grad)
    # The objective's own modules may have drawn numbers in the loss; the next step must not draw them again.
    _set_random_state(after_loss, device)
    return loss


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
