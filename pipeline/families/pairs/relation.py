"""Fits a relation head on a frozen encoder, from all labelled training pairs.

Shapes: S sentences in a store, n pairs, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from pipeline.config.params import RelationParams
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL
from pipeline.data.token_sets import PairSet
from pipeline.families.pairs.scoring import in_blocks
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import SCALE
from pipeline.models.relation_head import RELATED, REVERSED, Relation, RelationScale, ScoreKind, logits_of, similarity_log_odds
from pipeline.models.token_head import TokenHead, TokenProjection
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

# AdamW.
_BATCH, _RATE, _DECAY = 256, 1e-3, 0.01
# Batches that are sorted by length together.
_SORTED = 64
CLASS_WEIGHTS = torch.ones(len(LABELS) + 1)
"""Of each class in the loss. A reversed pair counts less: its label is assumed, and some entailments hold both ways."""
CLASS_WEIGHTS[REVERSED] = 0.3
_RIDGE, _SMALLEST = 1e-6, 1e-6


def examples(pairs: PairSet) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]]:
    """Premises, hypotheses and classes, (m,) each, that a relation is learned from.

    Each labelled pair is an example of its label; a neutral pair whose reverse is known to hold is one of `reversed`. So is each
    entailment pair in reverse order, unless it is known to hold both ways.
    """
    labels, reverse = np.asarray(pairs.label), np.asarray(pairs.reverse_label)
    turned = np.flatnonzero((labels == ENTAILMENT) & (reverse != ENTAILMENT))
    # Some data also say that the reverse of a neutral pair holds.
    known = np.where((labels == NEUTRAL) & (reverse == ENTAILMENT), REVERSED, labels)
    return (
        np.concatenate((pairs.premise, pairs.hypothesis[turned])),
        np.concatenate((pairs.hypothesis, pairs.premise[turned])),
        np.concatenate((known, np.full(len(turned), REVERSED, np.int8))).astype(np.int8, copy=False),
    )


def fit_head(
    sentences: Gaussian,
    pairs: PairSet,
    first: TokenProjection,
    start: TokenProjection,
    epochs: int,
    seed: int,
    name: str = "relation head",
) -> TokenHead:
    """A relation head for these sentences, from the `examples` of the pairs.

    Args:
        sentences: (S, D) of the training store, with token vectors.
        pairs: n labelled pairs of its sentences.
        first: made these vectors.
        start: the projection that the head's own starts from; it is trained with the head, as far as the vectors allow.
        epochs: passes over all examples.
        seed: decides the first weights, the order and the dropout. The caller's random state does not change.
        name: for the line of each pass on the terminal.

    Returns:
        the head, in evaluation mode, on the device of `sentences`.

    Raises:
        UserError: the pairs have no entailment, or nothing else.
    """
    labels = np.asarray(pairs.label)
    if not (labels == ENTAILMENT).any() or (labels == ENTAILMENT).all():
        raise UserError("a relation head needs training pairs that are entailments and others; these are all of one kind")
    device = sentences.mean.device
    left, right, target = examples(pairs)
    weight = CLASS_WEIGHTS.to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        head = TokenHead(first.before(start).requires_grad_()).to(device).train()
        numbers = torch.empty(len(target), dtype=torch.int32)
        steps = epochs * math.ceil(len(target) / _BATCH)
        optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, weight_decay=_DECAY, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

        def projected(rows: Tensor) -> tuple[Tensor, Tensor]:
            assert sentences.tokens is not None
            vectors, mask = sentences.tokens[rows].padded()
            return head.projection(vectors) / SCALE, mask

        for epoch in range(epochs):
            order = torch.randperm(len(target), out=numbers).numpy()
            total = 0.0
            for rows in _batches(sentences, left, right, order):
                a, b, batch_targets = (torch.from_numpy(part[rows]).to(device) for part in (left, right, target))
                loss = F.cross_entropy(head.logits(*projected(a), *projected(b)), batch_targets.long(), weight)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            log.info(f"{name}: pass {epoch + 1} of {epochs}, loss {total / len(order):.4f}")
    # From here on it reads hidden states.
    head.projection = head.projection.after(first)
    return head.requires_grad_(False).eval()


def _batches(
    sentences: Gaussian, left: NDArray[np.int32], right: NDArray[np.int32], order: NDArray[np.int32]
) -> Iterator[NDArray[np.int32]]:
    """The examples in this order, `_BATCH` at a time, whose lengths are similar: every `_SORTED` batches are sorted by length
    together, divided again, and come in random order."""
    assert sentences.tokens is not None
    lengths = sentences.tokens.length.cpu().numpy()
    for start in range(0, len(order), _BATCH * _SORTED):
        part = order[start : start + _BATCH * _SORTED]
        part = part[np.lexsort((lengths[right[part]], lengths[left[part]]))]
        batches = [part[k : k + _BATCH] for k in range(0, len(part), _BATCH)]
        yield from (batches[k] for k in torch.randperm(len(batches)).tolist())


@torch.inference_mode()
def calibrate(
    head: TokenHead, sentences: Gaussian, pairs: PairSet, kind: ScoreKind, params: RelationParams, *, seed: int, pairs_digest: str
) -> Relation:
    """Find the scale of a head's probabilities on the selection part of the development set.

    Slope and offsets maximise the likelihood of the labels, where `reversed` counts as neutral.

    Args:
        sentences: (S, D) of the development store.
        seed: that of the fit, to be kept with the scale.
        pairs_digest: digest of the pairs (`pipeline.data.token_sets.rows_digest`).

    Raises:
        UserError: the part has no entailment, or nothing else.
    """
    labels = torch.from_numpy(np.asarray(pairs.label).astype(np.int64)).to(sentences.mean.device)
    yes = labels == ENTAILMENT
    if not yes.any() or yes.all():
        raise UserError("a relation head needs development pairs that are entailments and others; these are all of one kind")
    blocks = in_blocks(sentences, pairs.premise, pairs.hypothesis)
    found = ((logits_of(head, p, h), similarity_log_odds(p, h, kind)) for p, h in blocks)
    logits, sim_log_odds = (torch.cat(parts).double() for parts in zip(*found, strict=True))
    related = logits[:, RELATED > 0].logsumexp(1) - logits[:, RELATED == 0].logsumexp(1)
    ratio = max(float(related.std()), _SMALLEST) / max(float(sim_log_odds.std()), _SMALLEST)
    both = logits + params.similarity_weight * ratio * sim_log_odds[:, None] * RELATED.to(logits)
    slope, entailed, neutral, contradicted = _likeliest(both, labels)
    scale = RelationScale(
        score_kind=kind,
        similarity_weight=params.similarity_weight,
        similarity_scale=ratio,
        slope=slope,
        offsets=(entailed, neutral, contradicted, 0.0),
        pairs=pairs_digest,
        epochs=params.epochs,
        seed=seed,
    )
    return Relation(head, scale)


def _likeliest(logits: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """Slope, and offsets of entailment, neutral and contradiction, with which the labels are most likely.

    Args:
        logits: (n, 4) float64 of `RELATIONS`.
        labels: (n,) codes of `LABELS`; `reversed` counts as neutral, and a pair without a label as not entailed.
    """

    def loss(numbers: NDArray[np.float64]) -> float:
        slope, *offsets = numbers
        p = (slope * logits + logits.new_tensor([*offsets, 0.0])).log_softmax(-1)
        p[:, NEUTRAL] = torch.logaddexp(p[:, NEUTRAL], p[:, REVERSED])
        others = torch.logaddexp(p[:, NEUTRAL], p[:, CONTRADICTION])
        given = torch.where(labels == NO_LABEL, others, p.gather(1, labels.clamp_min(0)[:, None])[:, 0])
        return -float(given.mean()) + _RIDGE * float((numbers**2).sum())

    solution: Any = minimize(loss, np.array([1.0, 0.0, 0.0, 0.0]), method="BFGS")
    slope, *offsets = solution.x.tolist()
    return slope, offsets[0], offsets[1], offsets[2]
