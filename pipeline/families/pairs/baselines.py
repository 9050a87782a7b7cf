"""A baseline that ignores the relation of two sentences: a classifier that never sees the premise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import DEV, ENTAILMENT, HARD, HARD_FOLDER, LABELS
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.evaluation import metrics

# Enough for the classifier to learn all that it can; more rows only take longer.
MAX_TRAINING_PAIRS = 60_000
_BATCH_ROWS = 65_536

Scores = dict[str, dict[str, float]]
"""Set → metric → value."""


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The hypotheses of n pairs, and the label of each pair, (n,): a position in `LABELS`."""

    texts: list[str]
    label: NDArray[np.int8]

    @property
    def entailment(self) -> NDArray[np.bool_]:
        """(n,) whether each pair is an entailment."""
        return self.label == ENTAILMENT


@dataclass(frozen=True, slots=True)
class HypothesisOnly:
    """What the classifier makes of some sets of pairs."""

    scores: Scores
    """For "dev" and each test set: pairs (a count); in percent accuracy, majority_accuracy, entailments (the PR-AUC of chance)
    and, if both classes occur, pr_auc and average_precision."""
    hard: dict[str, NDArray[np.bool_]]
    """For the same sets, (n,): whether the classifier finds another label than the pair's more likely. On these pairs the
    hypothesis alone misleads. A pair without a label has the label neutral here (`data.unlabelled: non-entailment`)."""


def read_hypotheses(pairs: Path, most: int) -> Hypotheses:
    """At most `most` hypotheses, evenly spaced, of a Parquet file of stage prepare; memory holds only those and one batch."""
    with open_parquet(pairs) as file:
        rows = file.metadata.num_rows
    wanted = np.linspace(0, rows - 1, min(most, rows)).astype(np.int64)
    texts: list[str] = []
    labels: list[NDArray[np.int8]] = []
    start = 0
    for batch in hypotheses_of(pairs):
        first, end = np.searchsorted(wanted, (start, start + len(batch.texts)))
        picked = wanted[first:end] - start
        texts += [batch.texts[i] for i in picked]
        labels.append(batch.label[picked])
        start += len(batch.texts)
    return Hypotheses(texts, np.concatenate([np.zeros(0, np.int8), *labels]))


def hypotheses_of(pairs: Path) -> Iterator[Hypotheses]:
    """All hypotheses of a Parquet file of stage prepare, a batch at a time."""
    with open_parquet(pairs) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=["hypothesis", "label"]):
            codes = pc.index_in(batch.column("label"), pa.array(LABELS))
            yield Hypotheses(batch.column("hypothesis").to_pylist(), codes.to_numpy(zero_copy_only=False).astype(np.int8))


def hypothesis_only_of(prepared: Path, tests: Sequence[str], step: float, entailment_if: EntailmentIf) -> Scores:
    """`hypothesis_only` for the files of stage prepare; writes hard/SET.parquet into the same folder.

    Args:
        prepared: the folder with train/, dev/ and tests/.
        tests: names of the test sets.
        step: evaluate.threshold_step.
        entailment_if: evaluate.entailment_if.

    Returns:
        The scores, rounded to four decimals.
    """
    results = hypothesis_only(
        read_hypotheses(prepared / "train/pairs.parquet", MAX_TRAINING_PAIRS),
        hypotheses_of(prepared / "dev/dev.parquet"),
        {name: hypotheses_of(prepared / "tests" / f"{name}.parquet") for name in tests},
        step,
        entailment_if,
    )
    for name, hard in results.hard.items():
        with ParquetFile(prepared / HARD_FOLDER / f"{name}.parquet", HARD) as file:
            file.write(pa.table([pa.array(hard)], schema=HARD))
    return {name: {key: round(value, 4) for key, value in numbers.items()} for name, numbers in results.scores.items()}


def hypothesis_only(
    train: Hypotheses,
    dev: Iterable[Hypotheses],
    tests: Mapping[str, Iterable[Hypotheses]],
    step: float = 0.001,
    entailment_if: EntailmentIf = ">=",
) -> HypothesisOnly:
    """NLI by a logistic regression on the hypothesis' words and word pairs.

    The score is the probability of entailment; its threshold is swept on the development set.

    Args:
        dev, tests: sets of pairs, in batches. Of a set only the scores are kept in memory.
        step: step of the sweep, evaluate.threshold_step.
        entailment_if: evaluate.entailment_if.

    Returns:
        Empty if the training pairs have one class only.
    """
    if train.entailment.all() or not train.entailment.any():
        return HypothesisOnly({}, {})
    vectorizer = HashingVectorizer(n_features=2**18, binary=True, ngram_range=(1, 2), alternate_sign=False)
    seen: Any = vectorizer.transform(train.texts)
    # Features that never occur in training would keep weight 0. Without them the solver has far fewer dimensions.
    used = np.unique(seen.indices)
    model = LogisticRegression(C=1.0, max_iter=1000)

    def score(batches: Iterable[Hypotheses]) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
        """Whether each pair is an entailment, its score, and whether another label than its own is more likely."""
        truth, scores, hard = [np.zeros(0, np.bool_)], [np.zeros(0)], [np.zeros(0, np.bool_)]
        for batch in batches:
            features: Any = vectorizer.transform(batch.texts)
            probabilities = model.predict_proba(features[:, used])
            truth.append(batch.entailment)
            # The classes are in order, and entailment, which occurs, is the first.
            scores.append(probabilities[:, 0])
            likely = model.classes_[probabilities.argmax(1)]
            hard.append(likely != batch.label)
        return np.concatenate(truth), np.concatenate(scores), np.concatenate(hard)

    # One thread, so that the sums do not depend on the number of cores.
    with threadpool_limits(1):
        model.fit(seen[:, used], train.label)
        scored = {name: score(batches) for name, batches in {DEV: dev, **tests}.items()}
    threshold, _ = metrics.best_threshold(*scored[DEV][:2], step, entailment_if)
    results = HypothesisOnly({}, {})
    for name, (truth, probabilities, hard) in scored.items():
        share = 100 * float(truth.mean())
        results.hard[name] = hard
        right = called(probabilities, threshold, entailment_if) == truth
        results.scores[name] = {
            "pairs": len(truth),
            "accuracy": 100 * float(right.mean()),
            "majority_accuracy": max(share, 100 - share),
            "entailments": share,
        }
        if truth.any() and not truth.all():
            results.scores[name]["pr_auc"] = 100 * metrics.pr_auc(truth, probabilities)
            results.scores[name]["average_precision"] = 100 * metrics.average_precision(truth, probabilities)
    return results
