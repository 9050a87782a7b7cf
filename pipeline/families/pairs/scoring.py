"""Encode every sentence once, score pairs, and compute the metrics.

Shapes: S sentences in a store, n pairs in a set, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.config.params import EvaluateParams
from pipeline.data.schema import ENTAILMENT, NEUTRAL
from pipeline.data.token_sets import PairSet, StsSet
from pipeline.data.token_store import TokenStore
from pipeline.distributed import collectives
from pipeline.evaluation import metrics
from pipeline.evaluation.encoding import encode_all
from pipeline.families.objective import Objective
from pipeline.gaussian.distribution import Gaussian, SimilarityKind, similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import Relation

Score = Callable[[Gaussian, Gaussian], Tensor]
"""Premises and hypotheses → (n,) scores of entailment."""

# Pairs scored at a time.
_PAIRS = 8192


@torch.inference_mode()
def dev_pr_auc(encoder: GaussianEncoder, score: Score, store: TokenStore, pairs: PairSet, *, bf16: bool = False) -> float:
    """PR-AUC (percent) of a score on a set of pairs, NaN if a score is not finite; the same on every worker."""
    sentences = encode_all(encoder, store, bf16=bf16)
    value = 0.0
    if collectives.rank() == 0:
        scores = _by_pairs(sentences, pairs.premise, pairs.hypothesis, score)
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
    sentences: Gaussian,
    store: TokenStore,
    pairs: PairSet,
    objective: Objective,
    kind: SimilarityKind | None,
    relation: Relation | None = None,
) -> pa.Table:
    """Per-pair scores of an NLI set.

    Args:
        kind: similarity for the direction scores; None for an objective without variances.
        relation: the model's relation head; it then scores the pairs, instead of the objective.

    Returns:
        Table of n rows: label and reverse_label (0 entailment, 1 neutral, 2 contradiction, −1 unknown), score (of "premise
        entails hypothesis"), reverse_score (of "hypothesis entails premise"), premise_tokens, hypothesis_tokens (before
        truncation). Unless kind is None, also sim_hp = sim(h‖p), sim_ph = sim(p‖h), premise_log_var and hypothesis_log_var (sums
        over D). With a relation head also similarity_score and reverse_similarity_score, the scores of the objective.
    """
    p, h = pairs.premise, pairs.hypothesis
    columns: dict[str, Any] = {
        "label": pairs.label,
        "reverse_label": pairs.reverse_label,
        "premise_tokens": store.length[p],
        "hypothesis_tokens": store.length[h],
    }
    scorers = {"": objective.score} if relation is None else {"": relation.score, "similarity_": objective.score}
    for prefix, scorer in scorers.items():
        columns[f"{prefix}score"] = _by_pairs(sentences, p, h, scorer)
        columns[f"reverse_{prefix}score"] = _by_pairs(sentences, h, p, scorer)
    if kind is not None:
        columns["sim_hp"] = _by_pairs(sentences, h, p, lambda a, b: similarity(a, b, kind))
        columns["sim_ph"] = _by_pairs(sentences, p, h, lambda a, b: similarity(a, b, kind))
        total = sentences.log_var.double().sum(-1).cpu().numpy()
        columns["premise_log_var"], columns["hypothesis_log_var"] = total[p], total[h]
    return pa.table(columns)


@torch.inference_mode()
def score_sts(sentences: Gaussian, pairs: StsSet, kind: SimilarityKind | None) -> pa.Table:
    """Per-pair scores of an STS set.

    Args:
        kind: similarity of Gaussians; None for an objective without variances.

    Returns:
        Table of n rows: score (gold), cosine (of the means) and, unless kind is None, similarity (½ sim(a‖b) + ½ sim(b‖a)).
    """

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
    """The best threshold of a scored set. It is never applied to the same set, unless the user says so."""
    labels = _column(scores, "label") == ENTAILMENT
    value, _ = metrics.best_threshold(labels, _column(scores, "score"), params.threshold_step, params.entailment_if)
    return Threshold(value, swept_on)


def nli_metrics(
    scores: pa.Table, threshold: Threshold, params: EvaluateParams, hard: NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Two-way NLI and direction metrics of one scored set, in percent, with the threshold and the counts of pairs.

    Direction metrics exist for these subsets of the pairs:
    - no prefix: all entailment pairs.
    - `not_longer`: entailment pairs whose premise is not longer than the hypothesis.
    - `hard`: entailment pairs that the hypothesis-only classifier gets wrong, without those known to hold both ways.
    - `one_way`, `two_way`: entailment pairs whose reverse is known not to be, or to be, an entailment (SICK).
    - `neutral`, a control: pairs whose premise does not entail the hypothesis (the reverse may hold). A share above ½ here comes
      from the way premises and hypotheses are written.

    `length_only` is the baseline "the sentence with more tokens entails the other; a tie counts half". Direction by sim or var is
    absent if the table has no variances. The metrics of a subset without pairs are absent, too.

    `directed_pr_auc` and `directed_average_precision` ask for both at once (`metrics.directed`). Their length-only baseline
    scores a pair by how many tokens longer its premise is.

    With a relation head, direction by `score` compares the scores of a pair both ways, and `similarity.pr_auc` and the like are
    those of the similarity alone.

    Args:
        hard: (n,), whether the hypothesis-only classifier gets a pair wrong: its hypothesis alone misleads.
            `hard.pr_auc` and the like are the areas on these pairs alone.
    """
    labels, score = _column(scores, "label") == ENTAILMENT, _column(scores, "score")
    out: dict[str, float] = {
        "pairs": len(labels),
        "entailments": int(labels.sum()),
        "threshold": threshold.value,
        "accuracy": 100 * metrics.accuracy_at(labels, score, threshold.value, params.entailment_if),
        "majority_accuracy": 100 * max(labels.mean(), 1 - labels.mean()),
    }
    columns = {name: _column(scores, name) for name in scores.column_names}
    parts = {"": columns}
    if hard is not None:
        parts["hard."] = {name: column[hard] for name, column in columns.items()}
        out |= {"hard.pairs": int(hard.sum()), "hard.entailments": int((labels & hard).sum())}
    for prefix, part in parts.items():
        out |= {f"{prefix}{name}": value for name, value in _areas(part, "").items()}
        if "similarity_score" in columns:
            out |= {f"similarity.{prefix}{name}": value for name, value in _areas(part, "similarity_").items()}
    excess = columns["premise_tokens"].astype(np.float64) - columns["hypothesis_tokens"]
    out |= {f"{name}_length_only": value for name, value in _directed(columns, excess, -excess).items()}
    longer = columns["premise_tokens"] > columns["hypothesis_tokens"]
    one_way, two_way = columns["reverse_label"] > ENTAILMENT, columns["reverse_label"] == ENTAILMENT
    subsets = {
        "": labels,
        "not_longer_": labels & ~longer,
        "one_way_": labels & one_way,
        "one_way_not_longer_": labels & one_way & ~longer,
        "two_way_": labels & two_way,
        **({} if hard is None else {"hard_": labels & hard & ~two_way}),
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
        if "similarity_score" in part:
            out[f"direction.{prefix}score"] = 100 * metrics.share_right(part["score"], part["reverse_score"])
    return out


def _areas(columns: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, float]:
    """The areas under the precision-recall curves of a score, as far as they are defined."""
    labels, score = columns["label"] == ENTAILMENT, columns[f"{prefix}score"]
    out: dict[str, float] = {}
    if labels.any() and not labels.all():
        out["pr_auc"] = 100 * metrics.pr_auc(labels, score)
        out["average_precision"] = 100 * metrics.average_precision(labels, score)
    return out | _directed(columns, score, columns[f"reverse_{prefix}score"])


def _directed(columns: Mapping[str, NDArray[Any]], score: NDArray[Any], reverse: NDArray[Any]) -> dict[str, float]:
    truth, scores, _ = metrics.directed(columns["label"], columns["reverse_label"], score, reverse)
    if not truth.any():
        return {}
    return {
        "directed_pr_auc": 100 * metrics.pr_auc(truth, scores),
        "directed_average_precision": 100 * metrics.average_precision(truth, scores),
    }


def sts_metrics(scores: pa.Table) -> dict[str, float]:
    """Spearman × 100 of the μ-cosine and, with variances, of the symmetrised similarity; absent if either side is constant."""
    gold = _column(scores, "score")
    shown = {"cosine": "spearman_cosine", "similarity": "spearman_similarity"}
    correlations = {
        metric: 100 * metrics.spearman(_column(scores, name), gold)
        for name, metric in shown.items()
        if name in scores.column_names and len(gold) > 1
    }
    return {"pairs": len(gold), **{metric: value for metric, value in correlations.items() if np.isfinite(value)}}


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    return table.column(name).to_numpy()
