"""An encoder and its relation head as graphs, functions of padded tensors alone, which ONNX and OpenVINO can hold.

Shapes: m sentences of L tokens with padding, n pairs, D dimensions of the Gaussian, d of a token's vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import SCALE
from pipeline.models.network import hidden_states, pool
from pipeline.models.relation_head import Relation

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder


class EncoderGraph(nn.Module):
    """Token ids and mask, both (m, L) → means and log-variances, each (m, D), and for a relation head (m, L, d) token vectors.

    By the backbone's own forward pass.
    """

    def __init__(self, encoder: GaussianEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = encoder.relation_head and encoder.relation_head.projection
        self.inputs = {"input_ids": torch.tensor([[0, 1, 2], [2, 1, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
        """Example inputs by name."""
        self.axes = {name: {0: "sentences", 1: "length"} for name in self.inputs}
        """The axes of each input that may have any length."""
        self.outputs = ["mean", "log_var", *(["tokens"] if self.projection else [])]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        pooling = self.encoder.params.pooling
        states = [hidden_states(tower, input_ids, attention_mask) for tower in self.encoder.towers]
        gaussian = self.encoder.gaussian_of([pool(one, attention_mask, pooling) for one in states])
        tokens = () if self.projection is None else (self.projection(states[0]),)
        return gaussian.mean, gaussian.log_var, *tokens


class RelationGraph(nn.Module):
    """Two sentences → probabilities of `RELATIONS`, (n, 4). A sentence is a mean and a log-variance, (n, D), token vectors,
    (n, L, d), and a mask, (n, L)."""

    outputs: ClassVar = ["probabilities"]

    def __init__(self, relation: Relation, dim: int) -> None:
        super().__init__()
        self.head, self.relation = relation.head, relation
        generator = torch.Generator().manual_seed(0)
        self.inputs: dict[str, Tensor] = {}
        self.axes: dict[str, dict[int, str]] = {}
        for sentence in ("premise", "hypothesis"):
            own = {name: torch.randn(2, dim, generator=generator) for name in ("mean", "log_var")}
            own["tokens"] = torch.ones((2, 3, relation.projection.out_features), dtype=torch.int8)
            own["mask"] = torch.tensor([[1, 1, 1], [1, 1, 0]])
            self.inputs |= {f"{sentence}_{part}": numbers for part, numbers in own.items()}
            length = {1: f"{sentence}_length"}
            self.axes |= {f"{sentence}_{part}": {0: "pairs", **(length if part in ("tokens", "mask") else {})} for part in own}

    def forward(self, *parts: Tensor) -> Tensor:
        half = len(parts) // 2
        gaussians = Gaussian(*parts[:2]), Gaussian(*parts[half : half + 2])
        (p_tokens, p_mask), (h_tokens, h_mask) = parts[2:half], parts[half + 2 :]
        logits = self.head.logits(p_tokens / SCALE, p_mask.bool(), h_tokens / SCALE, h_mask.bool())
        return self.relation.of_logits(logits, *gaussians).to(torch.float32)


Graph = EncoderGraph | RelationGraph
