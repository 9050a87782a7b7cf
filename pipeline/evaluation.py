"""Encode every sentence once, score pairs, and turn scores into the numbers of DESIGN section 2, Evaluation.

Shapes: S sentences in a store, n pairs of a set, D dimensions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline import collectives, metrics
from pipeline.data.schema import ENTAILMENT, NEUTRAL
from pipeline.data.tokens import PairSet, StsSet, TokenStore
from pipeline.encoder import GaussianEncoder
from pipeline.gaussian import Gaussian, SimilarityKind, similarity
from pipeline.objectives import Objective
from pipeline.params import EvaluateParams

# Pairs scored at a time.
_PAIRS = 8192


def encode_share(encoder: GaussianEncoder, store: TokenStore, share: int, shares: int, *, bf16: bool = False) -> Gaussian:
    """Encode every `shares`-th sentence of the store in order of length, beginning with the `share`-th.

    Returns:
        Gaussian of (⌈(S − share) / shares⌉, D), float32, in order of length, on the encoder's device.
    """
    return encoder.encode_rows(store, np.argsort(store.lengths, kind="stable")[share::shares], bf16=bf16)


def reassemble(shares: list[Gaussian], store: TokenStore) -> Gaussian:
    """The shares of `encode_share`, back in the order of the store: Gaussian of (S, D)."""
    order = np.argsort(store.lengths, kind="stable")
    first = shares[0]
    mean = first.mean.new_empty((len(store), first.mean.shape[-1]))
    log_var = torch.empty_like(mean)
    for k, part in enumerate(shares):
        rows = torch.from_numpy(order[k :: len(shares)]).to(mean.device)
        mean[rows], log_var[rows] = part.mean.to(mean.device), part.log_var.to(mean.device)
    return Gaussian(mean, log_var)


def encode_all(encoder: GaussianEncoder, store: TokenStore, *, bf16: bool = False) -> Gaussian:
    """Every sentence of the store once, spread over the workers: Gaussian of (S, D) on each of them."""
    workers = collectives.world_size()
    own = encode_share(encoder, store, collectives.rank(), workers, bf16=bf16)
    # Minutes of work, and one host may be slower than another.
    collectives.barrier()
    with torch.no_grad():
        everyone = collectives.gather_rows(torch.stack((own.mean, own.log_var), 1), len(store))
    ends = np.cumsum([0, *collectives.shard_sizes(len(store), workers)])
    parts = [everyone[a:b] for a, b in itertools.pairwise(ends)]
    return reassemble([Gaussian(p[:, 0], p[:, 1]) for p in parts], store)


@torch.inference_mode()
def dev_pr_auc(encoder: GaussianEncoder, objective: Objective, store: TokenStore, pairs: PairSet, *, bf16: bool = False) -> float:
    """PR-AUC (percent) of the objective's score on a set of pairs; the same number on every worker."""
    sentences = encode_all(encoder, store, bf16=bf16)
    value = 0.0
    if collectives.rank() == 0:
        scores = _by_pairs(sentences, pairs.premise, pairs.hypothesis, objective.score)
        finite = np.isfinite(scores).all()
        value = 100 * metrics.pr_auc(pairs.label == ENTAILMENT, scores) if finite else float("nan")
    return collectives.from_first(value, sentences.mean.device)


def _by_pairs(sentences: Gaussian, left: NDArray[np.int32], right: NDArray[np.int32], score: Any) -> NDArray[np.float64]:
    out = np.empty(len(left))
    for start in range(0, len(left), _PAIRS):
        part = slice(start, start + _PAIRS)
        a, b = (torch.from_numpy(x[part].astype(np.int64)).to(sentences.mean.device) for x in (left, right))
        out[part] = score(sentences[a], sentences[b]).double().cpu().numpy()
    return out


@torch.inference_mode()
def score_nli(
    sentences: Gaussian, store: TokenStore, pairs: PairSet, objective: Objective, kind: SimilarityKind | None
) -> pa.Table:
    """Per-pair scores of an NLI set.

    Args:
        kind: similarity of the direction scores; None for an objective without variances.

    Returns:
        Table of n rows: label and reverse_label (0 entailment, 1 neutral, 2 contradiction, −1 unknown), score (of "premise
        entails hypothesis"), premise_tokens, hypothesis_tokens (untruncated); and unless kind is None sim_hp = sim(h‖p),
        sim_ph = sim(p‖h), premise_log_var, hypothesis_log_var (sums over D).
    """
    p, h = pairs.premise, pairs.hypothesis
    columns: dict[str, Any] = {
        "label": pairs.label,
        "reverse_label": pairs.reverse_label,
        "premise_tokens": store.length[p],
        "hypothesis_tokens": store.length[h],
        "score": _by_pairs(sentences, p, h, objective.score),
    }
    if kind is not None:
        columns["sim_hp"] = _by_pairs(sentences, h, p, lambda a, b: similarity(a, b, kind))
        columns["sim_ph"] = _by_pairs(sentences, p, h, lambda a, b: similarity(a, b, kind))
        total = sentences.log_var.double().sum(-1).cpu().numpy()
        columns["premise_log_var"], columns["hypothesis_log_var"] = total[p], total[h]
    return pa.table(columns)


@torch.inference_mode()
def score_sts(sentences: Gaussian, pairs: StsSet, kind: SimilarityKind | None) -> pa.Table:
    """Per-pair scores of an STS set: score (gold), cosine (of the means), similarity (½ sim(a‖b) + ½ sim(b‖a), unless None)."""

    def cosine(a: Gaussian, b: Gaussian) -> Tensor:
        return F.cosine_similarity(a.mean, b.mean, dim=-1)

    columns: dict[str, Any] = {
        "score": pairs.score,
        "cosine": _by_pairs(sentences, pairs.sentence1, pairs.sentence2, cosine),
    }
    if kind is not None:
        columns["similarity"] = _by_pairs(
            sentences, pairs.sentence1, pairs.sentence2, lambda a, b: (similarity(a, b, kind) + similarity(b, a, kind)) / 2
        )
    return pa.table(columns)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold and the set it was swept on."""

    value: float
    swept_on: str


def sweep(scores: pa.Table, swept_on: str, params: EvaluateParams) -> Threshold:
    """The best threshold of a scored set (never the set it will be applied to, unless the user says so)."""
    labels = _column(scores, "label") == ENTAILMENT
    value, _ = metrics.best_threshold(labels, _column(scores, "score"), params.threshold_step, params.entailment_if)
    return Threshold(value, swept_on)


def nli_metrics(scores: pa.Table, threshold: Threshold, params: EvaluateParams) -> dict[str, float]:
    """Two-way NLI and direction of one scored set, in percent (threshold aside); counts beside the shares.

    `length_only` is the baseline "the sentence with more tokens entails, ties count half"; `not_longer` are the entailment
    pairs whose premise is not longer; `one_way`/`two_way` need a reverse label (SICK). `neutral` is a control: the same question
    asked of pairs whose premise does not entail the hypothesis (if anything, the reverse); what lies above ½ there is told from
    how premises and hypotheses are written. Direction by sim or var is absent where the table has no variances, and a share of
    no pairs is absent too.
    """
    labels, score = _column(scores, "label") == ENTAILMENT, _column(scores, "score")
    out: dict[str, float] = {
        "pairs": len(labels),
        "entailments": int(labels.sum()),
        "threshold": threshold.value,
        "accuracy": 100 * metrics.accuracy_at(labels, score, threshold.value, params.entailment_if),
        "majority_accuracy": 100 * max(labels.mean(), 1 - labels.mean()),
    }
    if labels.any() and not labels.all():
        out["pr_auc"] = 100 * metrics.pr_auc(labels, score)
        out["average_precision"] = 100 * metrics.average_precision(labels, score)
    columns = {name: _column(scores, name) for name in scores.column_names}
    longer = columns["premise_tokens"] > columns["hypothesis_tokens"]
    one_way, two_way = columns["reverse_label"] > ENTAILMENT, columns["reverse_label"] == ENTAILMENT
    subsets = {
        "": labels,
        "not_longer_": labels & ~longer,
        "one_way_": labels & one_way,
        "one_way_not_longer_": labels & one_way & ~longer,
        "two_way_": labels & two_way,
        "neutral_": columns["label"] == NEUTRAL,
    }
    for prefix, rows in subsets.items():
        if not rows.any():
            continue
        part = {name: column[rows] for name, column in columns.items()}
        out[f"direction.{prefix}pairs"] = int(rows.sum())
        out[f"direction.{prefix}length_only"] = 100 * metrics.share_right(
            part["premise_tokens"], part["hypothesis_tokens"], ties=0.5
        )
        if "sim_hp" in part:
            out[f"direction.{prefix}sim"] = 100 * metrics.share_right(part["sim_hp"], part["sim_ph"])
            out[f"direction.{prefix}var"] = 100 * metrics.share_right(part["premise_log_var"], part["hypothesis_log_var"])
    return out


def sts_metrics(scores: pa.Table) -> dict[str, float]:
    """Spearman × 100 of the μ-cosine and, with variances, of the symmetrised similarity; absent where one side is constant."""
    gold = _column(scores, "score")
    shown = {"cosine": "spearman_cosine", "similarity": "spearman_similarity"}
    found = {
        metric: 100 * metrics.spearman(_column(scores, name), gold)
        for name, metric in shown.items()
        if name in scores.column_names and len(gold) > 1
    }
    return {"pairs": len(gold), **{metric: value for metric, value in found.items() if np.isfinite(value)}}


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    return table.column(name).to_numpy()
