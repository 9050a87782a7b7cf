"""Encode every sentence once, and score pairs.

Shapes: S sentences in a store, n pairs in a set, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.schema import ENTAILMENT
from pipeline.data.token_sets import PairSet, StsSet
from pipeline.data.token_store import TokenStore
from pipeline.distributed import collectives
from pipeline.evaluation import metrics
from pipeline.evaluation.encoding import encode_all
from pipeline.families.objective import Objective
from pipeline.gaussian.distribution import Gaussian, SimilarityKind, similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import Relation, likeliest_labels

Score = Callable[[Gaussian, Gaussian], Tensor]
"""Premises and hypotheses → (n,) scores of entailment, or (n, 4) probabilities."""

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


def in_blocks(sentences: Gaussian, left: NDArray[np.int32], right: NDArray[np.int32]) -> Iterator[tuple[Gaussian, Gaussian]]:
    """The Gaussians of both sides of n pairs, some pairs at a time."""
    for start in range(0, max(len(left), 1), _PAIRS):
        part = slice(start, start + _PAIRS)
        a, b = (torch.from_numpy(x[part].astype(np.int64)).to(sentences.mean.device) for x in (left, right))
        yield sentences[a], sentences[b]


def _by_pairs(sentences: Gaussian, left: NDArray[np.int32], right: NDArray[np.int32], score: Score) -> NDArray[np.float64]:
    return np.concatenate([score(a, b).double().cpu().numpy() for a, b in in_blocks(sentences, left, right)])


@torch.inference_mode()
def score_nli(
    sentences: Gaussian, store: TokenStore, pairs: PairSet, objective: Objective, relation: Relation | None = None
) -> pa.Table:
    """Per-pair scores of an NLI set.

    Args:
        relation: the model's relation head; it then scores the pairs, instead of the objective.

    Returns:
        Table of n rows: label and reverse_label (0 entailment, 1 neutral, 2 contradiction, −1 unknown), score (of "premise
        entails hypothesis"), reverse_score (of "hypothesis entails premise"), premise_tokens, hypothesis_tokens (before
        truncation). With variances also sim_hp = sim(h‖p), sim_ph = sim(p‖h), premise_log_var and hypothesis_log_var (sums
        over D). With a relation head also similarity_score and reverse_similarity_score, the scores of the objective, and
        relation, the likeliest label, where a reversed entailment counts as neutral.
    """
    p, h = pairs.premise, pairs.hypothesis
    columns: dict[str, Any] = {
        "label": pairs.label,
        "reverse_label": pairs.reverse_label,
        "premise_tokens": store.length[p],
        "hypothesis_tokens": store.length[h],
    }
    prefix = ""
    if relation is not None:
        likely, prefix = _by_pairs(sentences, p, h, relation.probabilities), "similarity_"
        columns["score"], columns["reverse_score"] = likely[:, ENTAILMENT], _by_pairs(sentences, h, p, relation.score)
        columns["relation"] = likeliest_labels(likely)
    columns[f"{prefix}score"] = _by_pairs(sentences, p, h, objective.score)
    columns[f"reverse_{prefix}score"] = _by_pairs(sentences, h, p, objective.score)
    if (kind := objective.similarity) is not None:
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

    scores: dict[str, Score] = {"cosine": lambda a, b: F.cosine_similarity(a.mean, b.mean, dim=-1)}
    if kind is not None:
        scores["similarity"] = lambda a, b: (similarity(a, b, kind) + similarity(b, a, kind)) / 2
    found = {name: _by_pairs(sentences, pairs.sentence1, pairs.sentence2, score) for name, score in scores.items()}
    return pa.table({"score": pairs.score, **found})
