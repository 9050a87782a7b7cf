"""What can be had without looking at the relation of two sentences: a classifier that never sees the premise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression

from pipeline import metrics
from pipeline.params import EvaluateParams

# Enough for the classifier to have found what there is; more rows only take longer.
MAX_TRAINING_PAIRS = 60_000


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Hypotheses of n pairs, and whether each pair is an entailment."""

    texts: list[str]
    entailment: NDArray[np.bool_]


def read_hypotheses(pairs: Path, most: int | None = None) -> Hypotheses:
    """The hypotheses of a Parquet file of stage prepare; at most `most` of them, evenly picked."""
    table = pq.read_table(pairs, columns=["hypothesis", "label"])
    if most is not None and table.num_rows > most:
        table = table.take(np.linspace(0, table.num_rows - 1, most).astype(np.int64))
    return Hypotheses(
        table.column("hypothesis").to_pylist(), np.array([x == "entailment" for x in table.column("label").to_pylist()])
    )


def hypothesis_only(
    train: Hypotheses, dev: Hypotheses, tests: Mapping[str, Hypotheses], params: EvaluateParams
) -> dict[str, dict[str, float]]:
    """Two-way NLI by a logistic regression on the hypothesis' words and word pairs; threshold swept on the development set.

    Returns:
        for "dev" and each test set: accuracy, and pr_auc and average_precision where both classes occur; in percent.
    """
    vectorizer = HashingVectorizer(n_features=2**18, binary=True, ngram_range=(1, 2), alternate_sign=False)
    model = LogisticRegression(C=4.0, max_iter=200)
    model.fit(vectorizer.transform(train.texts), train.entailment)
    scores = {name: model.predict_proba(vectorizer.transform(part.texts))[:, 1] for name, part in {"dev": dev, **tests}.items()}
    threshold, _ = metrics.best_threshold(dev.entailment, scores["dev"], params.threshold_step, params.entailment_if)
    out: dict[str, dict[str, float]] = {}
    for name, part in {"dev": dev, **tests}.items():
        truth, got = part.entailment, scores[name]
        out[name] = {"accuracy": 100 * metrics.accuracy_at(truth, got, threshold, params.entailment_if)}
        if truth.any() and not truth.all():
            out[name]["pr_auc"] = 100 * metrics.pr_auc(truth, got)
            out[name]["average_precision"] = 100 * metrics.average_precision(truth, got)
    return out
