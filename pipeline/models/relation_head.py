"""The relation head: a small network over two Gaussians that says how two sentences relate, and the score made from it.

It needs stored means and log-variances only, so a pair costs microseconds.

Shapes: n pairs, D dimensions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.config.types import Section
from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.model_dir import RELATION, RELATION_WEIGHTS
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError
from pipeline.utils.safetensors_io import write_tensors

REVERSED = RELATIONS.index("reversed")

ScoreKind = Literal["kl", "kl-dimwise", "cosine"]
"""The score of a model: one of the two Gaussian similarities, or the cosine of the means if it has no variances."""
FORMULAS: dict[ScoreKind, str] = {
    "kl": "1 / (1 + KL) of two Gaussians",
    "kl-dimwise": "the mean over the dimensions of 1 / (1 + KL) of two Gaussians",
    "cosine": "the cosine of the means",
}
"""Each score in words, for every text that says how a model compares sentences."""

_HIDDEN, _DROPOUT = 512, 0.2
# Log-odds of a similarity nearer to 0 or 1 than this are cut. Two equal sentences have similarity 1.
_EDGE = 1e-6


class RelationHead(nn.Module):
    """Two Gaussians → logits of `RELATIONS`: one hidden layer over x_p, x_h and their product, with x = (μ, ℓ) standardised.

    The difference of the two is not a separate input, because it is linear in them.

    Args:
        dim: D.
        difference: |x_p − x_h| is a further input.
    """

    center: Tensor
    """(2·D,) mean of x over the training sentences; 0 in a head that is trained with its encoder."""
    spread: Tensor
    """(2·D,) its standard deviation; 1 in such a head."""

    def __init__(self, dim: int, *, difference: bool = False) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(2 * dim))
        self.register_buffer("spread", torch.ones(2 * dim))
        self.difference = difference
        self.hidden = nn.Linear((8 if difference else 6) * dim, _HIDDEN)
        self.out = nn.Linear(_HIDDEN, len(RELATIONS))

    @property
    def dim(self) -> int:
        """D, the dimensions of the Gaussians."""
        return len(self.center) // 2

    def standardised(self, sentences: Gaussian) -> Tensor:
        """(..., 2·D)"""
        return (torch.cat((sentences.mean, sentences.log_var), -1) - self.center) / self.spread

    def logits(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """(n, 4) from two tensors of `standardised`, (n, 2·D)."""
        parts = [premise, hypothesis, premise * hypothesis]
        if self.difference:
            parts.append((premise - hypothesis).abs())
        joined = torch.cat(parts, -1)
        hidden = F.relu(self.hidden(F.dropout(joined, _DROPOUT, self.training)))
        return self.out(F.dropout(hidden, _DROPOUT, self.training))

    def forward(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n, 4) logits of `RELATIONS`."""
        return self.logits(self.standardised(premise), self.standardised(hypothesis))


class RelationScale(Section):
    """How the head's logits and the similarity become probabilities, found on the selection part of the development set.

    With r the log-odds of "related" (entailment or reversed) by the head, s those of the similarity, and p the head's
    probabilities, the probability of entailment is
    σ(slope·(r / related_deviation + similarity_weight·s / similarity_deviation) + offset) · √(p_entailment / (p_entailment +
    p_reversed)).
    The first factor says whether one sentence entails the other; the similarity is a good measure of that. The second factor says
    which one does. It has a square root because the head can give only one half to each direction if both hold. The other
    three relations share the rest by the head's logits divided by `temperature`.
    """

    score_kind: ScoreKind
    similarity_weight: float
    related_deviation: float
    similarity_deviation: float
    slope: float
    offset: float
    temperature: float
    pairs: str
    """Digest of the pairs of the selection part (`pipeline.data.token_sets.rows_digest`)."""
    epochs: int
    """How the head was fitted: passes over the training pairs."""
    seed: int
    """The seed of the fit."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A fitted head and its scale."""

    head: RelationHead
    scale: RelationScale

    @torch.inference_mode()
    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n,) float64: the probability that the premise entails the hypothesis."""
        premise, hypothesis = self._here(premise, hypothesis)
        return self._entailment(self.head(premise, hypothesis), premise, hypothesis)

    @torch.inference_mode()
    def probabilities(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n, 4) float64: the probability of each of `RELATIONS`; a row sums to 1, and its first number is `score`."""
        premise, hypothesis = self._here(premise, hypothesis)
        logits = self.head(premise, hypothesis)
        yes = self._entailment(logits, premise, hypothesis)
        others = (logits[:, 1:].double() / self.scale.temperature).softmax(-1)
        return torch.cat((yes[:, None], (1 - yes)[:, None] * others), -1)

    def _here(self, premise: Gaussian, hypothesis: Gaussian) -> tuple[Gaussian, Gaussian]:
        """The Gaussians with the head's number type, on its device."""
        return premise.to(self.head.center), hypothesis.to(self.head.center)

    def _entailment(self, logits: Tensor, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        scale = self.scale
        log_odds = related_log_odds(logits) / scale.related_deviation
        if scale.similarity_weight:
            sim_log_odds = similarity_log_odds(premise, hypothesis, scale.score_kind)
            log_odds = log_odds + scale.similarity_weight * sim_log_odds / scale.similarity_deviation
        return (scale.slope * log_odds + scale.offset).sigmoid() * forward_share(logits)

    def write(self, folder: Path) -> None:
        """Write relation.safetensors and relation.json into a folder."""
        write_tensors(self.head.state_dict(), folder / RELATION_WEIGHTS)
        text = json.dumps(self.scale.model_dump(mode="json"), indent=2, sort_keys=True)
        (folder / RELATION).write_text(text + "\n", encoding="utf-8")


def read_relation(folder: Path) -> Relation | None:
    """The relation head in a folder, in evaluation mode; None if there is none.

    Raises:
        UserError: its files do not fit together, or another version wrote them.
    """
    if not (folder / RELATION).is_file():
        return None
    try:
        scale = RelationScale.model_validate_json(json.dumps(read_json(folder / RELATION)))
        head = read_head(folder)
    except (IndexError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValidationError):
        raise UserError(
            f"{folder / RELATION}: not a relation head that this version can read; it is damaged, or of another version: "
            "run `dvc repro`, which fits a new one"
        ) from None
    return Relation(head, scale)


def read_head(folder: Path) -> RelationHead:
    """The network in relation.safetensors, in evaluation mode; a file that does not hold one is an error of torch or Python."""
    weights = load_file(folder / RELATION_WEIGHTS)
    dim = len(weights["center"]) // 2
    head = RelationHead(dim, difference=weights["hidden.weight"].shape[1] == 8 * dim)
    head.load_state_dict(weights)
    return head.eval()


def related_log_odds(logits: Tensor) -> Tensor:
    """(n,) float64 log-odds of "entailment or reversed" from logits (n, 4) of `RELATIONS`."""
    logits = logits.double()
    return torch.logaddexp(logits[:, 0], logits[:, REVERSED]) - torch.logaddexp(logits[:, 1], logits[:, 2])


def forward_share(logits: Tensor) -> Tensor:
    """(n,) float64 √(p_entailment / (p_entailment + p_reversed)) from logits (n, 4) of `RELATIONS`."""
    logits = logits.double()
    return (logits[:, 0] - logits[:, REVERSED]).sigmoid().sqrt()


def similarity_log_odds(premise: Gaussian, hypothesis: Gaussian, kind: ScoreKind) -> Tensor:
    """(n,) float64 log-odds of sim(hypothesis‖premise), or of (1 + cosine) / 2 of the means."""
    premise, hypothesis = premise.to(torch.float64), hypothesis.to(torch.float64)
    if kind == "cosine":
        sim = (1 + F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)) / 2
    else:
        sim = similarity(hypothesis, premise, kind)
    return sim.logit(_EDGE)
