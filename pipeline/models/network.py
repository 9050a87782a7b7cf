"""The network of the Gaussian encoder: a Hugging Face backbone, a pooled hidden state, and two linear heads (mean, variance).

Shapes: m sentences, H hidden size of the backbone, D dimensions of the Gaussian.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.config.params import ModelParams
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models import flash, packed_bert
from pipeline.models.packing import TokenBlocks
from pipeline.utils.errors import UserError

# Added to σ² so that its logarithm stays finite.
_FLOOR = 1e-6


class GaussianNetwork(nn.Module):
    """Tokens → Gaussian."""

    def __init__(self, backbone: nn.Module, params: ModelParams) -> None:
        super().__init__()
        # An unused pooler would have parameters without gradients, which DDP rejects.
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # type: ignore[assignment]
        self.backbone = backbone
        self.second_backbone = copy.deepcopy(backbone) if params.towers == "encoders" else None
        self.params = params
        hidden: int = backbone.config.hidden_size  # type: ignore[union-attr, assignment]
        self.dim = params.dim or hidden
        if params.towers == "encoders" and self.dim % 2:
            raise UserError(
                f"model.dim: {self.dim} dimensions cannot be divided between two encoders (model.towers); use an even number"
            )
        self.mean_head = nn.Linear(hidden, self.dim)
        if params.mean_start == "identity":
            if self.dim % hidden:
                raise UserError(
                    f"model.mean_start: identity copies the {hidden} numbers of the hidden state, and model.dim {self.dim} is "
                    f"not a multiple of {hidden}; use one, or null"
                )
            with torch.no_grad():
                self.mean_head.weight.copy_(torch.eye(hidden).repeat(self.dim // hidden, 1))
                self.mean_head.bias.zero_()
        self.variance_head = nn.Linear(hidden, self.dim)

    def forward(self, batch: TokenBlocks, project: Callable[[Tensor], Tensor] | None = None) -> Gaussian:
        """m sentences → Gaussian of (m, D), in block order.

        Args:
            project: if given, the Gaussian also has token vectors: what this makes, (T, d), of the last hidden states of the T
                tokens, padding included, (T, H). With two towers these are the states of the first.
        """
        if project is None:
            return self.gaussian_of([_pooled(backbone, batch, self.params.pooling) for backbone in self.towers])
        states = [_token_states(backbone, batch) for backbone in self.towers]
        pooled = [
            torch.cat([pool(part, mask, self.params.pooling) for part, mask in zip(one, batch.masks, strict=True)])
            for one in states
        ]
        gaussian = self.gaussian_of(pooled)
        table = project(torch.cat([part.flatten(0, 1) for part in states[0]]))
        length = [mask.sum(1) for _, mask in batch.rectangles()]
        return Gaussian(gaussian.mean, gaussian.log_var, tokens=TokenVectors(table, batch.first_tokens(), torch.cat(length)))

    def gaussian_of(self, hidden: Sequence[Tensor]) -> Gaussian:
        """The Gaussian of (m, D) from the pooled states, (m, H), of each of `towers`."""
        mean = _by_towers(self.mean_head, hidden)
        if self.params.mean_activation == "tanh":
            mean = torch.tanh(mean)
        spread = _by_towers(self.variance_head, hidden)
        if self.params.variance_head == "sigma":
            # σ may be negative; only σ² counts. float32, because bf16 has too few digits for the floor under the logarithm.
            spread = spread.to(torch.promote_types(spread.dtype, torch.float32))
            spread = torch.log(spread.square() + _FLOOR)
        return Gaussian(mean, spread)

    @property
    def towers(self) -> list[nn.Module]:
        """The backbones: one, or one for each half of the dimensions (`model.towers`)."""
        return [self.backbone] if self.second_backbone is None else [self.backbone, self.second_backbone]


def _pooled(backbone: nn.Module, batch: TokenBlocks, pooling: Literal["first", "mean"]) -> Tensor:
    """(m, H): one vector per sentence, by `model.pooling`."""
    if packed_bert.is_bert_shaped(backbone):
        return (packed_bert.first_token_states if pooling == "first" else packed_bert.mean_states)(backbone, batch)
    states = zip(_token_states(backbone, batch), batch.masks, strict=True)
    return torch.cat([pool(part, mask, pooling) for part, mask in states])


def _token_states(backbone: nn.Module, batch: TokenBlocks) -> list[Tensor]:
    """The last hidden states of each block, (c, L, H)."""
    if packed_bert.is_bert_shaped(backbone):
        return packed_bert.token_states(backbone, batch)
    if flash.takes(backbone, batch.ids.device):
        return batch.by_block(flash.states(backbone, batch))
    return [hidden_states(backbone, *rectangle) for rectangle in batch.rectangles()]


def hidden_states(backbone: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """(c, L, H): the last hidden states of c padded sentences, by the backbone's own forward pass; `ids` and `mask` (c, L)."""
    return backbone(input_ids=ids, attention_mask=mask).last_hidden_state


def pool(states: Tensor, mask: Tensor | None, pooling: Literal["first", "mean"]) -> Tensor:
    """(c, H): one vector per sentence, from `hidden_states` (c, L, H) and the mask (c, L)."""
    return states[:, 0] if pooling == "first" else packed_bert.masked_mean(states, mask)


def _by_towers(head: nn.Linear, hidden: Sequence[Tensor]) -> Tensor:
    """(m, D): the head over one (m, H), or the first half of its outputs over the first and the second half over the second."""
    weights, biases = (parameter.chunk(len(hidden)) for parameter in (head.weight, head.bias))
    return torch.cat([F.linear(*part) for part in zip(hidden, weights, biases, strict=True)], -1)
