"""The relation head: a small network that reads stored vectors of the tokens of two sentences and says how they relate.

Each token is aligned softly with the tokens of the other sentence, compared with what it is aligned with, and the comparisons
are pooled (Parikh et al. 2016, "A Decomposable Attention Model for Natural Language Inference"). So a single word can decide,
which a Gaussian cannot hold.

Shapes: n pairs, L tokens of the longest sentence of a batch, d dimensions of a token's vector, H hidden size of the backbone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import SCALE
from pipeline.models.model_dir import OBJECTIVE_WEIGHTS

DIM = 96
"""d of a stored vector, and so the bytes of a token."""
_WIDTH, _DROPOUT = 160, 0.1
# Standard deviations that a stored number covers.
_RANGE = 4.0


class TokenProjection(nn.Linear):
    """Hidden states of tokens → their stored vectors: one linear layer, cut to [−1, 1] and rounded to int8."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., H) → (..., d), int8; in training mode the same numbers as floats, whose gradient passes the rounding."""
        exact = F.linear(input, self.weight.to(input), self.bias.to(input))
        # bf16 would have too few digits for what becomes of these numbers.
        exact = exact.to(torch.promote_types(exact.dtype, torch.float32)).clamp(-1, 1) * SCALE
        return exact + (exact.round() - exact).detach() if self.training else exact.round().to(torch.int8)

    @property
    def digest(self) -> str:
        """SHA-256 over its numbers: vectors of projections with equal digests can be compared."""
        return hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in (self.weight, self.bias))).hexdigest()

    @torch.no_grad()
    def after(self, first: TokenProjection) -> TokenProjection:
        """One projection of hidden states that does what this one does with the vectors of `first`, if these were exact."""
        weight = self.weight.double()
        first_weight, first_bias = (numbers.to(weight) for numbers in (first.weight, first.bias))
        return TokenProjection._of(weight @ first_weight, weight @ first_bias + self.bias)

    @torch.no_grad()
    def before(self, last: TokenProjection) -> TokenProjection:
        """The projection of this one's vectors with which `after` is `last`, as nearly as these vectors allow."""
        weight = last.weight.double() @ torch.linalg.pinv(self.weight.double())
        return TokenProjection._of(weight, last.bias - weight @ self.bias.double())

    @staticmethod
    def principal(states: Tensor, most: int = DIM) -> TokenProjection:
        """Onto the at most `most` directions in which these states, (T, H), vary most, equally scaled."""
        spread, directions = torch.linalg.eigh(torch.cov(states.double().T))
        # A LayerNorm leaves a direction without variance, whose numbers would be rounding errors.
        keep = min(most, int((spread > 1e-6 * spread[-1]).sum()))
        weight = directions[:, -keep:].T / (_RANGE * spread[-keep:, None].sqrt())
        return TokenProjection._of(weight, -weight @ states.double().mean(0))

    @staticmethod
    def _of(weight: Tensor, bias: Tensor) -> TokenProjection:
        # Only a module with given weights draws no random numbers.
        with torch.device("meta"):
            projection = TokenProjection(weight.shape[1], weight.shape[0])
        projection.load_state_dict({"weight": weight.float(), "bias": bias.float()}, assign=True)
        return projection.requires_grad_(False).eval()


class TokenHead(nn.Module):
    """Token vectors of two sentences → logits of `RELATIONS`.

    Args:
        projection: makes the vectors.
    """

    def __init__(self, projection: TokenProjection) -> None:
        super().__init__()
        self.projection, dim = projection, projection.out_features
        self.query = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        drop = nn.Dropout(_DROPOUT)
        self.compare = nn.Sequential(drop, nn.Linear(4 * dim, _WIDTH), nn.ReLU(), drop, nn.Linear(_WIDTH, _WIDTH), nn.ReLU())
        self.out = nn.Sequential(drop, nn.Linear(4 * _WIDTH, 2 * _WIDTH), nn.ReLU(), drop, nn.Linear(2 * _WIDTH, len(RELATIONS)))

    def forward(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n, 4) logits of `RELATIONS`, from the Gaussians' token vectors."""
        assert premise.tokens is not None and hypothesis.tokens is not None
        return self.logits(*premise.tokens.padded(), *hypothesis.tokens.padded())

    def logits(self, premise: Tensor, premise_mask: Tensor, hypothesis: Tensor, hypothesis_mask: Tensor) -> Tensor:
        """(n, 4) from padded vectors, (n, L, d), and masks, (n, L), that are True on tokens."""
        scores = self.query(premise) @ self.query(hypothesis).transpose(1, 2) / math.sqrt(premise.shape[-1])
        parts: list[Tensor] = []
        for own, mask, other, other_mask, score in (
            (premise, premise_mask, hypothesis, hypothesis_mask, scores),
            (hypothesis, hypothesis_mask, premise, premise_mask, scores.transpose(1, 2)),
        ):
            aligned = score.masked_fill(~other_mask[:, None], -torch.inf).softmax(-1) @ other
            compared = self.compare(torch.cat((own, aligned, (own - aligned).abs(), own * aligned), -1))
            # ReLU gives no number below 0, so padding never has the largest.
            compared = compared * mask[..., None]
            parts += [compared.sum(1) / mask.sum(1, keepdim=True), compared.amax(1)]
        return self.out(torch.cat(parts, -1))


def head_of(weights: Mapping[str, Tensor]) -> TokenHead:
    """The head with these weights, in evaluation mode; other weights are an error of torch or Python."""
    dim, hidden = weights["projection.weight"].shape
    head = TokenHead(TokenProjection(hidden, dim))
    head.load_state_dict(weights)
    return head.eval()


def joint_projection(folder: Path) -> TokenProjection | None:
    """The projection of the head that a model was trained with; None if it was trained without one."""
    file = folder / OBJECTIVE_WEIGHTS
    weights = load_file(file) if file.is_file() else {}
    # An objective may have other modules.
    return head_of(weights).projection if weights.keys() == TokenHead(TokenProjection(1, 1)).state_dict().keys() else None
