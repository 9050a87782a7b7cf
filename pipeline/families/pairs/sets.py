"""The sets of pairs: labelled (NLI), and with a graded similarity (STS)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import DEV, ENTAILMENT, LABELS, NEUTRAL
from pipeline.data.token_sets import read_pairs, read_sts
from pipeline.data.token_store import open_store
from pipeline.evaluation import bootstrap, metrics
from pipeline.evaluation.bootstrap import Statistic
from pipeline.evaluation.set_kind import Columns, Encoded, Hard, SetKind, Tables, columns_of

# Column of a graded set's scores → metric.
_GRADED = {"cosine": "spearman_cosine", "similarity": "spearman_similarity"}


def nli_metrics(
    scores: pa.Table, threshold: float, entailment_if: EntailmentIf, hard: NDArray[np.bool_] | None = None
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

    `directed_pr_auc` and `directed_average_precision` ask for both at once (`metrics.directed`). The length-only baseline of all
    areas scores a pair by how many tokens longer its premise is.

    With a relation head, direction by `score` compares the scores of a pair both ways, and `similarity.pr_auc` and the like are
    those of the similarity alone. `three_way` is the accuracy of the likeliest label, and `confusion.GOLD.CALLED` the share of a
    gold label's pairs that are called so.

    Args:
        hard: (n,), whether the hypothesis-only classifier gets a pair wrong: its hypothesis alone misleads.
            `hard.pr_auc` and the like are the areas on these pairs alone.
    """
    columns = columns_of(scores)
    labels, score = columns["label"] == ENTAILMENT, columns["score"]
    yes = called(score, threshold, entailment_if)
    out: dict[str, float] = {
        "pairs": len(labels),
        "entailments": int(labels.sum()),
        "threshold": threshold,
        "accuracy": 100 * float((yes == labels).mean()),
        "f1": 200 * float((labels & yes).sum()) / max(1, int(labels.sum() + yes.sum())),
        "majority_accuracy": 100 * max(labels.mean(), 1 - labels.mean()),
    }
    parts = {"": columns}
    if hard is not None:
        parts["hard."] = {name: column[hard] for name, column in columns.items()}
        out |= {"hard.pairs": int(hard.sum()), "hard.entailments": int((labels & hard).sum())}
    for prefix, part in parts.items():
        out |= {f"{prefix}{name}": value for name, value in _areas(part, "").items()}
        if "similarity_score" in columns:
            out |= {f"similarity.{prefix}{name}": value for name, value in _areas(part, "similarity_").items()}
    if "relation" in columns:
        gold, called_so = columns["label"], columns["relation"]
        out["three_way"] = 100 * float((gold == called_so).mean())
        for (k, label), (j, other) in itertools.product(enumerate(LABELS), repeat=2):
            if (gold == k).any():
                out[f"confusion.{label}.{other}"] = 100 * float((called_so[gold == k] == j).mean())
    excess = columns["premise_tokens"].astype(np.float64) - columns["hypothesis_tokens"]
    by_length = _both_areas(labels, excess) | _directed(columns, excess, -excess)
    out |= {f"{name}_length_only": value for name, value in by_length.items()}
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


def _areas(columns: Columns, prefix: str) -> dict[str, float]:
    """The areas under the precision-recall curves of a score, as far as they are defined."""
    score = columns[f"{prefix}score"]
    return _both_areas(columns["label"] == ENTAILMENT, score) | _directed(columns, score, columns[f"reverse_{prefix}score"])


def _directed(columns: Columns, score: NDArray[Any], reverse: NDArray[Any]) -> dict[str, float]:
    truth, scores, _ = metrics.directed(columns["label"], columns["reverse_label"], score, reverse)
    return _both_areas(truth, scores, "directed_")


def _both_areas(labels: NDArray[np.bool_], scores: NDArray[Any], prefix: str = "") -> dict[str, float]:
    """The areas by trapezoids and by steps; empty if the labels are of one class."""
    if labels.all() or not labels.any():
        return {}
    areas = {"pr_auc": metrics.pr_auc(labels, scores), "average_precision": metrics.average_precision(labels, scores)}
    return {f"{prefix}{name}": 100 * area for name, area in areas.items()}


def sts_metrics(scores: pa.Table) -> dict[str, float]:
    """Spearman × 100 of the μ-cosine and, with variances, of the symmetrised similarity; absent if either side is constant."""
    columns = columns_of(scores)
    gold = columns["score"]
    correlations = {
        metric: 100 * metrics.spearman(columns[name], gold)
        for name, metric in _GRADED.items()
        if name in columns and len(gold) > 1
    }
    return {"pairs": len(gold), **{metric: value for metric, value in correlations.items() if np.isfinite(value)}}


def _threshold(name: str, tables: Tables, params: EvaluateParams) -> float:
    """The best threshold of the set that `evaluate.threshold_on` names for a set, by default dev. It is not swept on the set
    itself, unless the user says so."""
    swept = columns_of(tables[params.threshold_on.get(name, DEV)])
    labels = swept["label"] == ENTAILMENT
    return metrics.best_threshold(labels, swept["score"], params.threshold_step, params.entailment_if)[0]


class LabelledPairs(SetKind):
    """Pairs with the labels of NLI."""

    key = "nli_sets"
    marker = "label"
    same = ("label", "reverse_label")

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_nli`."""
        from pipeline.families.pairs.scoring import score_nli

        pairs = read_pairs(store, name)
        return score_nli(encoded.sentences[store], open_store(store), pairs, encoded.objective, encoded.relation)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """The premises."""
        return read_pairs(store, name).premise

    def metrics(self, name: str, tables: Tables, params: EvaluateParams, hard: Hard) -> dict[str, float]:
        """`nli_metrics`."""
        return nli_metrics(tables[name], _threshold(name, tables, params), params.entailment_if, hard.get(name))

    def statistics(self, name: str, tables: Tables, params: EvaluateParams) -> dict[str, Statistic]:
        """Accuracy, both areas, and direction."""
        columns = columns_of(tables[name])
        threshold = _threshold(name, tables, params)
        labels, scores = columns["label"] == ENTAILMENT, columns["score"]
        one_way = labels & (columns["reverse_label"] != ENTAILMENT)
        statistics = {"accuracy": bootstrap.share(called(scores, threshold, params.entailment_if) == labels)}
        if labels.any() and not labels.all():
            statistics["pr_auc"] = bootstrap.pr_auc(labels, scores)
            if "reverse_score" in columns and one_way.any():
                given = (columns[key] for key in ("label", "reverse_label", "score", "reverse_score"))
                statistics["directed_pr_auc"] = bootstrap.directed_pr_auc(*given)
        if "relation" in columns:
            statistics["three_way"] = bootstrap.share(columns["relation"] == columns["label"])
        # A pair that holds both ways has no direction to get right.
        counted = one_way if one_way.any() else labels
        if "similarity_score" in columns:
            statistics["direction.score"] = bootstrap.share(columns["score"] > columns["reverse_score"], counted)
        elif "sim_hp" in columns:
            statistics["direction.score"] = bootstrap.share(columns["sim_hp"] > columns["sim_ph"], counted)
        return statistics

    def curve(self, table: pa.Table) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
        """Of entailment against the rest; None if all rows are of one class."""
        labels = table.column("label").to_numpy() == ENTAILMENT
        if labels.all() or not labels.any():
            return None
        return metrics.pr_curve(labels, table.column("score").to_numpy())


class GradedPairs(SetKind):
    """Pairs with a graded similarity."""

    key = "sts_sets"
    marker = "cosine"
    same = ()

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_sts`."""
        from pipeline.families.pairs.scoring import score_sts

        return score_sts(encoded.sentences[store], read_sts(store, name), encoded.objective.similarity)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """Each pair is drawn alone."""
        return np.arange(len(read_sts(store, name)))

    def metrics(self, name: str, tables: Tables, params: EvaluateParams, hard: Hard) -> dict[str, float]:
        """`sts_metrics`."""
        return sts_metrics(tables[name])

    def statistics(self, name: str, tables: Tables, params: EvaluateParams) -> dict[str, Statistic]:
        """Spearman's correlations."""
        columns = columns_of(tables[name])
        return {metric: bootstrap.spearman(columns[c], columns["score"]) for c, metric in _GRADED.items() if c in columns}


SETS = (LabelledPairs(), GradedPairs())
