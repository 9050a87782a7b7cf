"""The relation of two stored sentences: what a fitted head (`pipeline.models.token_head`) and the similarity say together.

Shapes: n pairs, D dimensions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pipeline.config.types import Section
from pipeline.data.schema import ENTAILMENT, LABELS, NEUTRAL, RELATIONS
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.model_dir import RELATION, RELATION_WEIGHTS
from pipeline.models.token_head import TokenHead, TokenProjection, head_of
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import UserError
from pipeline.utils.safetensors_io import write_tensors

REVERSED = RELATIONS.index("reversed")
RELATED = torch.tensor([float(name in ("entailment", "reversed")) for name in RELATIONS])
"""(4,) whether a relation says that one of the sentences entails the other."""

ScoreKind = Literal["kl", "kl-dimwise", "cosine"]
"""The score of a model: one of the two Gaussian similarities, or the cosine of the means if it has no variances."""
FORMULAS: dict[ScoreKind, str] = {
    "kl": "1 / (1 + KL) of two Gaussians",
    "kl-dimwise": "the mean over the dimensions of 1 / (1 + KL) of two Gaussians",
    "cosine": "the cosine of the means",
}
"""Each score in words, for every text that says how a model compares sentences."""

# Log-odds of a similarity nearer to 0 or 1 than this are cut. Two equal sentences have similarity 1.
_EDGE = 1e-6
# Padded tokens on one side of the pairs that a token head reads at a time.
_TOKENS = 4096


class RelationScale(Section):
    """How the head's logits and the similarity become probabilities, found on the selection part of the development set.

    With l the head's logits and s the log-odds of the similarity, the probabilities are
    softmax(slope·(l + similarity_weight·similarity_scale·s·[the relation is entailment or reversed]) + offsets).
    The similarity is a good measure of whether one of two sentences entails the other; the head also says which one does.
    Slope and offsets are the vector scaling of Guo et al. 2017, "On Calibration of Modern Neural Networks", with one slope.
    """

    score_kind: ScoreKind
    similarity_weight: float
    similarity_scale: float
    """The standard deviation of the head's log-odds of "entailment or reversed", divided by that of s."""
    slope: float
    offsets: tuple[float, float, float, float]
    """Of `RELATIONS`; the last is 0."""
    pairs: str
    """Digest of the pairs of the selection part (`pipeline.data.token_sets.rows_digest`)."""
    epochs: int
    """How the head was fitted: passes over the training pairs."""
    seed: int
    """The seed of the fit."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A fitted head and its scale."""

    head: TokenHead
    scale: RelationScale

    @property
    def projection(self) -> TokenProjection:
        """Makes the token vectors that the head reads."""
        return self.head.projection

    def check(self, sentences: Gaussian) -> None:
        """Check that the head can read these sentences.

        Raises:
            UserError: they have no token vectors or another number of dimensions: another model encoded them.
        """
        if not len(sentences):
            return
        if sentences.tokens is None:
            raise UserError(
                "the relation head reads token vectors, and these Gaussians have none: encode the sentences with this model (a "
                "corpus with gausscse encode --tokens)"
            )
        ours, theirs = self.projection.out_features, sentences.tokens.table.shape[1]
        if ours != theirs:
            raise UserError(f"the relation head has {ours} dimensions, the sentences {theirs}: they come from different models")

    def cut(self, share: float) -> Relation:
        """The head for Gaussians that keep this share of their dimensions, of which each adds as much to KL as another one.

        By `kl` their similarities have log-odds that are −log(share) larger; by a mean over the dimensions the same.
        """
        scale = self.scale
        if scale.score_kind != "kl":
            return self
        excess = -scale.slope * scale.similarity_weight * scale.similarity_scale * math.log(share)
        entailed, neutral, contradicted, reverse = scale.offsets
        return Relation(
            self.head, scale.model_copy(update={"offsets": (entailed, neutral + excess, contradicted + excess, reverse)})
        )

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n,) float64: the probability that the premise entails the hypothesis."""
        return self.probabilities(premise, hypothesis)[:, ENTAILMENT]

    @torch.inference_mode()
    def probabilities(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(n, 4) float64: the probability of each of `RELATIONS`; a row sums to 1."""
        premise, hypothesis = self._here(premise, hypothesis)
        return self.of_logits(logits_of(self.head, premise, hypothesis), premise, hypothesis)

    def of_logits(self, logits: Tensor, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """`probabilities` from the head's logits, (n, 4)."""
        scale, logits = self.scale, logits.double()
        if scale.similarity_weight:
            log_odds = similarity_log_odds(premise, hypothesis, scale.score_kind)
            logits = logits + scale.similarity_weight * scale.similarity_scale * log_odds[:, None] * RELATED.to(log_odds)
        return (scale.slope * logits + logits.new_tensor(scale.offsets)).softmax(-1)

    def _here(self, premise: Gaussian, hypothesis: Gaussian) -> tuple[Gaussian, Gaussian]:
        """The Gaussians with the head's number type, on its device."""
        for sentences in (premise, hypothesis):
            self.check(sentences)
        like = next(self.head.parameters())
        return premise.to(like), hypothesis.to(like)

    def write(self, folder: Path) -> None:
        """Write relation.safetensors and relation.json into a folder."""
        write_tensors(self.head.state_dict(), folder / RELATION_WEIGHTS)
        write_json(folder / RELATION, self.scale.model_dump(mode="json"))


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
    except (IndexError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError):
        raise UserError(
            f"{folder / RELATION}: not a relation head that this version can read; it is damaged, or of another version: "
            "train the model again with `dvc repro`; if this one is champion, promote the new one with --force"
        ) from None
    return Relation(head, scale)


def read_head(folder: Path) -> TokenHead:
    """The network in relation.safetensors, in evaluation mode; a file that does not hold one is an error of torch or Python."""
    return head_of(load_file(folder / RELATION_WEIGHTS))


def logits_of(head: TokenHead, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
    """(n, 4) logits of a head, pairs of similar length at a time, so that padding costs little time and memory."""
    logits = premise.mean.new_empty(len(premise), len(RELATIONS))
    if len(premise):
        assert premise.tokens is not None and hypothesis.tokens is not None
        lengths = torch.stack((premise.tokens.length, hypothesis.tokens.length))
        for rows in by_lengths(lengths.cpu().numpy(), _TOKENS):
            logits[rows] = head(premise[rows], hypothesis[rows])
    return logits


def by_lengths(lengths: NDArray[np.int64], tokens: int) -> Iterator[Tensor]:
    """Row numbers of n pairs, in parts of similar length with at most `tokens` padded tokens on each side.

    Args:
        lengths: (2, n), n > 0.
    """
    order = np.lexsort(lengths)
    while len(order):
        longest = np.maximum.accumulate(lengths[:, order[:tokens]].max(0))
        count = max(1, int(np.searchsorted(longest * np.arange(1, len(longest) + 1), tokens, side="right")))
        yield torch.from_numpy(order[:count])
        order = order[count:]


def likeliest_labels(probabilities: NDArray[np.float64]) -> NDArray[np.int8]:
    """(n,) codes of `LABELS`, from (n, 4) probabilities of `RELATIONS`; a reversed entailment counts as neutral."""
    labels = probabilities[:, : len(LABELS)].copy()
    labels[:, NEUTRAL] += probabilities[:, REVERSED]
    return labels.argmax(1).astype(np.int8)


def similarity_log_odds(premise: Gaussian, hypothesis: Gaussian, kind: ScoreKind) -> Tensor:
    """(n,) float64 log-odds of sim(hypothesis‖premise), or of (1 + cosine) / 2 of the means."""
    premise, hypothesis = premise.to(torch.float64), hypothesis.to(torch.float64)
    if kind == "cosine":
        sim = (1 + F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)) / 2
    else:
        sim = similarity(hypothesis, premise, kind)
    # Not `logit`, which OpenVINO does not know.
    sim = sim.clamp(_EDGE, 1 - _EDGE)
    return (sim / (1 - sim)).log()
