"""The token head: a relation head that reads stored vectors of the tokens of both sentences, so that a single word can decide.

Each token is aligned softly with the tokens of the other sentence, compared with what it is aligned with, and the comparisons
are pooled (Parikh et al. 2016, "A Decomposable Attention Model for Natural Language Inference"). A Gaussian cannot hold this.

Shapes: n pairs, L tokens of the longest sentence of a batch, d dimensions of a token's vector, H hidden size of the backbone.
"""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import SCALE

DIM = 96
"""d of a stored vector, and so the bytes of a token."""
# While a head is fitted, its projection is learned from this many dimensions, so that hidden states need not be stored.
_FIT_DIM = 192
_WIDTH, _DROPOUT = 160, 0.1
# Standard deviations that a stored number covers.
_RANGE = 4.0


class TokenProjection(nn.Linear):
    """Hidden states of tokens → their stored vectors: one linear layer, cut to [−1, 1] and rounded to int8."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., H) → (..., d), int8."""
        vectors = F.linear(input, self.weight.to(input), self.bias.to(input))
        return (vectors.clamp(-1, 1) * SCALE).round().to(torch.int8)

    @property
    def digest(self) -> str:
        """SHA-256 over its numbers: vectors of projections with equal digests can be compared."""
        return hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in (self.weight, self.bias))).hexdigest()

    @staticmethod
    def principal(states: Tensor) -> TokenProjection:
        """The projection that a fit starts from: onto the directions in which these states, (T, H), vary most, equally scaled."""
        spread, directions = torch.linalg.eigh(torch.cov(states.double().T))
        # A LayerNorm leaves a direction without variance, whose numbers would be rounding errors.
        keep = min(_FIT_DIM, int((spread > 1e-6 * spread[-1]).sum()))
        weight = directions[:, -keep:].T / (_RANGE * spread[-keep:, None].sqrt())
        projection = TokenProjection(states.shape[1], keep).requires_grad_(False)
        projection.weight.copy_(weight)
        projection.bias.copy_(-weight @ states.double().mean(0))
        return projection


class TokenHead(nn.Module):
    """Token vectors of two sentences → logits of `RELATIONS`.

    Args:
        hidden: H.
        dim: d.
    """

    def __init__(self, hidden: int, dim: int = DIM) -> None:
        super().__init__()
        self.projection = TokenProjection(hidden, dim).requires_grad_(False)
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


class TokenHeadFit(nn.Module):
    """A token head while it is fitted: it learns its projection, too, from vectors of `TokenProjection.principal`.

    Args:
        first: the projection that made the vectors.
    """

    def __init__(self, first: TokenProjection) -> None:
        super().__init__()
        self.first, self.head = first, TokenHead(first.in_features, min(DIM, first.out_features))
        self.reduce = nn.Linear(first.out_features, self.head.projection.out_features)
        # A quarter of the range for a typical number.
        nn.init.normal_(self.reduce.weight, std=_RANGE * 0.25 / math.sqrt(first.out_features))
        nn.init.zeros_(self.reduce.bias)

    def forward(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n, 4) logits."""
        assert premise.tokens is not None and hypothesis.tokens is not None
        (p, p_mask), (h, h_mask) = premise.tokens.padded(), hypothesis.tokens.padded()
        return self.head.logits(self._stored(p), p_mask, self._stored(h), h_mask)

    def _stored(self, vectors: Tensor) -> Tensor:
        """Vectors as they will be stored; the gradient passes the rounding."""
        exact = self.reduce(vectors).clamp(-1, 1)
        return exact + ((exact * SCALE).round() / SCALE - exact).detach()

    def finished(self) -> TokenHead:
        """The head, with both projections as one."""
        with torch.no_grad():
            weight, first = self.reduce.weight, self.first
            self.head.projection.weight.copy_(weight @ first.weight)
            self.head.projection.bias.copy_(weight @ first.bias + self.reduce.bias)
        return self.head.eval()
