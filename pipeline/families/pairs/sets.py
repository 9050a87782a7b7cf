"""The sets of pairs: labelled (NLI), and with a graded similarity (STS)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.data.decision import called
from pipeline.data.schema import DEV, ENTAILMENT, NO_LABEL
from pipeline.data.token_sets import read_pairs, read_sts
from pipeline.data.token_store import open_store
from pipeline.evaluation import bootstrap, metrics
from pipeline.evaluation.bootstrap import Statistic
from pipeline.evaluation.set_kind import Encoded, SetKind, columns_of

_GRADED = {"cosine": "spearman_cosine", "similarity": "spearman_similarity"}


class LabelledPairs(SetKind):
    """Pairs with the labels of NLI."""

    key = "nli_sets"
    marker = "label"
    same = ("label", "reverse_label")

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_nli`."""
        from pipeline.families.pairs.scoring import score_nli

        objective, opened = encoded.objective, open_store(store)
        pairs = read_pairs(store, name)
        return score_nli(encoded.sentences[store], opened, pairs, objective, objective.similarity, encoded.relation)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """The premises."""
        return read_pairs(store, name).premise

    def metrics(
        self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams, hard: Mapping[str, NDArray[Any]]
    ) -> dict[str, float]:
        """`scoring.nli_metrics`; the threshold is swept on the set in `evaluate.threshold_on`, by default on dev."""
        from pipeline.families.pairs.scoring import nli_metrics, sweep

        on = params.threshold_on.get(name, DEV)
        return nli_metrics(tables[name], sweep(tables[on], on, params), params, hard.get(name))

    def statistics(self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams) -> dict[str, Statistic]:
        """Accuracy, both areas, and direction."""
        columns = columns_of(tables[name])
        swept = tables[params.threshold_on.get(name, DEV)]
        threshold, _ = metrics.best_threshold(
            swept.column("label").to_numpy() == ENTAILMENT,
            swept.column("score").to_numpy(),
            params.threshold_step,
            params.entailment_if,
        )
        labels, scores = columns["label"] == ENTAILMENT, columns["score"]
        one_way = labels & (columns.get("reverse_label", NO_LABEL) != ENTAILMENT)
        statistics = {"accuracy": bootstrap.share(called(scores, threshold, params.entailment_if) == labels)}
        if labels.any() and not labels.all():
            statistics["pr_auc"] = bootstrap.pr_auc(labels, scores)
            if "reverse_score" in columns and one_way.any():
                score_pair = columns["score"], columns["reverse_score"]
                statistics["directed_pr_auc"] = bootstrap.directed_pr_auc(columns["label"], columns["reverse_label"], *score_pair)
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

    def metrics(
        self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams, hard: Mapping[str, NDArray[Any]]
    ) -> dict[str, float]:
        """`scoring.sts_metrics`."""
        from pipeline.families.pairs.scoring import sts_metrics

        return sts_metrics(tables[name])

    def statistics(self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams) -> dict[str, Statistic]:
        """Spearman's correlations."""
        columns = columns_of(tables[name])
        return {metric: bootstrap.spearman(columns[c], columns["score"]) for c, metric in _GRADED.items() if c in columns}


SETS = (LabelledPairs(), GradedPairs())
