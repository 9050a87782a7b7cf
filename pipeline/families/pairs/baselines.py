"""A baseline that ignores the relation of two sentences: a classifier that never sees the premise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.dataset import dataset
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from pipeline.data.decision import EntailmentIf
from pipeline.data.schema import DEV, ENTAILMENT, HARD, HARD_FOLDER, LABELS
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.evaluation import metrics

# Enough for the classifier to learn all that it can; more rows only take longer.
MAX_TRAINING_PAIRS = 60_000
_BATCH_ROWS, _COLUMNS = 65_536, ["hypothesis", "label"]


# A text without spaces that has letters of a script without spaces: Thai to Khmer, kana, Chinese characters.
_UNSPACED = re.compile(r"\s*\S*[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]\S*\s*")


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The hypotheses of n pairs, and the label of each pair, (n,): a position in `LABELS`."""

    texts: list[str]
    label: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Found:
    """What the classifier makes of a set of pairs."""

    scores: dict[str, float]
    """Metric → value: pairs (a count); in percent accuracy, majority_accuracy, entailments (the PR-AUC of chance) and, if both
    classes occur, pr_auc and average_precision."""
    hard: NDArray[np.bool_]
    """(n,) whether the classifier finds another label than the pair's more likely. On these pairs the hypothesis alone misleads.
    A pair without a label has the label neutral here (`data.unlabelled: non-entailment`)."""


def read_hypotheses(pairs: Path, most: int) -> Hypotheses:
    """At most `most` hypotheses, evenly spaced, of a Parquet file of stage prepare; memory holds only those and a few batches."""
    rows = pq.read_metadata(pairs).num_rows
    wanted = np.linspace(0, rows - 1, min(most, rows)).astype(np.int64)
    return _hypotheses(dataset(pairs).take(wanted, columns=_COLUMNS, batch_size=_BATCH_ROWS, batch_readahead=1))


def hypotheses_of(pairs: Path) -> Iterator[Hypotheses]:
    """All hypotheses of a Parquet file of stage prepare, a batch at a time."""
    with open_parquet(pairs) as file:
        yield from map(_hypotheses, file.iter_batches(_BATCH_ROWS, columns=_COLUMNS))


def _hypotheses(rows: pa.RecordBatch | pa.Table) -> Hypotheses:
    label = np.asarray(pc.index_in(rows["label"], pa.array(LABELS)), np.int8)
    return Hypotheses(rows["hypothesis"].to_pylist(), label)


def hypothesis_only_of(
    prepared: Path, tests: Sequence[str], step: float, entailment_if: EntailmentIf
) -> dict[str, dict[str, float]]:
    """`hypothesis_only` for the files of stage prepare; writes hard/SET.parquet into the same folder.

    Args:
        prepared: the folder with train/, dev/ and tests/.
        tests: names of the test sets.

    Returns:
        set → metric → value, rounded to four decimals.
    """
    train = read_hypotheses(prepared / "train/pairs.parquet", MAX_TRAINING_PAIRS)
    files = {DEV: prepared / "dev/dev.parquet", **{name: prepared / "tests" / f"{name}.parquet" for name in tests}}
    results = hypothesis_only(train, {name: hypotheses_of(path) for name, path in files.items()}, step, entailment_if)
    for name, found in results.items():
        with ParquetFile(prepared / HARD_FOLDER / f"{name}.parquet", HARD) as file:
            file.write(pa.table([pa.array(found.hard)], schema=HARD))
    return {name: {key: round(value, 4) for key, value in found.scores.items()} for name, found in results.items()}


def hypothesis_only(
    train: Hypotheses, sets: Mapping[str, Iterable[Hypotheses]], step: float = 0.001, entailment_if: EntailmentIf = ">="
) -> dict[str, Found]:
    """NLI by a logistic regression on the hypothesis' words and word pairs; where most hypotheses are of Thai, Chinese or
    Japanese letters without spaces, on its characters, pairs and triples of them.

    The score is the probability of entailment; its threshold is swept on the development set.

    Args:
        sets: set → pairs, in batches, "dev" among them. Of a set only the scores are kept in memory.
        step: step of the sweep, evaluate.threshold_step.
        entailment_if: evaluate.entailment_if.

    Returns:
        set → what was found; empty if the training pairs have one class only.
    """
    entailed = train.label == ENTAILMENT
    if entailed.all() or not entailed.any():
        return {}
    by_characters = 2 * sum(map(bool, map(_UNSPACED.fullmatch, train.texts))) > len(train.texts)
    units: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 3)} if by_characters else {"ngram_range": (1, 2)}
    vectorizer = HashingVectorizer(n_features=2**18, binary=True, alternate_sign=False, **units)
    seen: Any = vectorizer.transform(train.texts)
    # Features that never occur in training would keep weight 0. Without them the solver has far fewer dimensions.
    used = np.unique(seen.indices)
    model = LogisticRegression(C=1.0, max_iter=1000)

    def scored(batches: Iterable[Hypotheses]) -> list[NDArray[Any]]:
        """Whether each pair is an entailment, its score, and whether another label than its own is more likely."""
        parts = [(np.zeros(0, np.bool_), np.zeros(0), np.zeros(0, np.bool_))]
        for batch in batches:
            features: Any = vectorizer.transform(batch.texts)
            probabilities = model.predict_proba(features[:, used])
            likely = model.classes_[probabilities.argmax(1)]
            # The classes are in order, and entailment, which occurs, is the first.
            parts.append((batch.label == ENTAILMENT, probabilities[:, 0], likely != batch.label))
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    # One thread, so that the sums do not depend on the number of cores.
    with threadpool_limits(1):
        model.fit(seen[:, used], train.label)
        columns = {name: scored(batches) for name, batches in sets.items()}
    threshold, _ = metrics.best_threshold(columns[DEV][0], columns[DEV][1], step, entailment_if)
    results: dict[str, Found] = {}
    for name, (truth, probabilities, hard) in columns.items():
        share = 100 * float(truth.mean())
        scores = {
            "pairs": len(truth),
            "accuracy": 100 * metrics.accuracy_at(truth, probabilities, threshold, entailment_if),
            "majority_accuracy": max(share, 100 - share),
            "entailments": share,
        }
        if truth.any() and not truth.all():
            scores["pr_auc"] = 100 * metrics.pr_auc(truth, probabilities)
            scores["average_precision"] = 100 * metrics.average_precision(truth, probabilities)
        results[name] = Found(scores, hard)
    return results
