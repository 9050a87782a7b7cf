"""A baseline that ignores the relation of two sentences: a classifier that never sees the premise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from pipeline.data.decision import EntailmentIf
from pipeline.data.table_io import open_parquet
from pipeline.evaluation import metrics

# Enough for the classifier to learn all that it can; more rows only take longer.
MAX_TRAINING_PAIRS = 60_000
# Enough for a precision of a tenth of a point; evaluation sets are smaller and are scored completely.
MAX_SCORED_PAIRS = 100_000
_BATCH_ROWS = 65_536

Scores = dict[str, dict[str, float]]
"""Set → metric → value."""


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The hypotheses of n pairs, and whether each pair is an entailment, (n,)."""

    texts: list[str]
    entailment: NDArray[np.bool_]


def read_hypotheses(pairs: Path, most: int) -> Hypotheses:
    """At most `most` hypotheses, evenly spaced, of a Parquet file of stage prepare; memory holds only those and one batch."""
    texts: list[str] = []
    labels: list[str] = []
    with open_parquet(pairs) as file:
        rows = file.metadata.num_rows
        wanted = np.linspace(0, rows - 1, min(most, rows)).astype(np.int64)
        start = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=["hypothesis", "label"]):
            first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
            picked = batch.take(wanted[first:end] - start)
            texts += picked.column("hypothesis").to_pylist()
            labels += picked.column("label").to_pylist()
            start += batch.num_rows
    return Hypotheses(texts, np.array([label == "entailment" for label in labels], dtype=np.bool_))


def hypothesis_only_of(prepared: Path, tests: Sequence[str], step: float, entailment_if: EntailmentIf) -> Scores:
    """`hypothesis_only` for the files of stage prepare, rounded to four decimals.

    Args:
        prepared: the folder with train/, dev/ and tests/.
        tests: names of the test sets.
        step: evaluate.threshold_step.
        entailment_if: evaluate.entailment_if.
    """
    scores = hypothesis_only(
        read_hypotheses(prepared / "train/pairs.parquet", MAX_TRAINING_PAIRS),
        read_hypotheses(prepared / "dev/dev.parquet", MAX_SCORED_PAIRS),
        {name: read_hypotheses(prepared / "tests" / f"{name}.parquet", MAX_SCORED_PAIRS) for name in tests},
        step,
        entailment_if,
    )
    return {name: {key: round(value, 4) for key, value in numbers.items()} for name, numbers in scores.items()}


def hypothesis_only(
    train: Hypotheses,
    dev: Hypotheses,
    tests: Mapping[str, Hypotheses],
    step: float = 0.001,
    entailment_if: EntailmentIf = ">=",
) -> Scores:
    """Two-way NLI by a logistic regression on the hypothesis' words and word pairs; threshold swept on the development set.

    Args:
        step: step of the sweep, evaluate.threshold_step.
        entailment_if: evaluate.entailment_if.

    Returns:
        For "dev" and each test set: pairs (a count); in percent accuracy, majority_accuracy, entailments (the PR-AUC of chance)
        and, if both classes occur, pr_auc and average_precision. Empty if the training pairs have one class only.
    """
    if train.entailment.all() or not train.entailment.any():
        return {}
    vectorizer = HashingVectorizer(n_features=2**18, binary=True, ngram_range=(1, 2), alternate_sign=False)
    seen: Any = vectorizer.transform(train.texts)
    # Features that never occur in training would keep weight 0. Without them the solver has far fewer dimensions.
    used = np.unique(seen.indices)

    def score(part: Hypotheses) -> NDArray[np.float64]:
        features: Any = vectorizer.transform(part.texts)
        return model.predict_proba(features[:, used])[:, 1]

    model = LogisticRegression(C=4.0, max_iter=200)
    # One thread, so that the sums do not depend on the number of cores.
    with threadpool_limits(1):
        model.fit(seen[:, used], train.entailment)
        scores = {name: score(part) for name, part in {"dev": dev, **tests}.items()}
    threshold, _ = metrics.best_threshold(dev.entailment, scores["dev"], step, entailment_if)
    out: dict[str, dict[str, float]] = {}
    for name, part in {"dev": dev, **tests}.items():
        truth, got = part.entailment, scores[name]
        share = 100 * float(truth.mean())
        out[name] = {
            "pairs": len(truth),
            "accuracy": 100 * metrics.accuracy_at(truth, got, threshold, entailment_if),
            "majority_accuracy": max(share, 100 - share),
            "entailments": share,
        }
        if truth.any() and not truth.all():
            out[name]["pr_auc"] = 100 * metrics.pr_auc(truth, got)
            out[name]["average_precision"] = 100 * metrics.average_precision(truth, got)
    return out
