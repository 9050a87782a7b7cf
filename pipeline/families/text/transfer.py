"""Transfer tasks: how much a linear classifier learns from frozen embeddings.

After SentEval (Conneau and Kiela 2018), with these differences: C is fixed unless it is searched; the search has one list of
values for all tasks, which holds both of SentEval's; the right answers of the folds are added up, where SentEval averages the
folds' accuracies; the seed of the folds is a parameter (SentEval's is 1111); the regression of several classes is multinomial
(SentEval's was one-vs-rest or a small network); only the accuracy is computed. The mean classifier is that of Arora et al., "A
Theoretical Analysis of Contrastive Unsupervised Representation Learning" (2019), section 2.

Shapes: n rows, F features, K classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from pipeline.data.schema import TASK_PARTS
from pipeline.data.token_sets import TaskSet
from pipeline.families.text.running_text import Features, Numbers
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.families.text.tasks import Task

TRAIN, DEV, TEST = range(len(TASK_PARTS))
FOLDS = 10
FOLD_SEED = 1111
"""That of SentEval."""
FIXED_C = 1.0
SEARCHED_C = tuple(2.0**power for power in range(-2, 6))
"""1 / (the weight of the squared norm)."""


def check(task: Task, *, search: bool) -> None:
    """Whether the task has enough rows of each class for the folds.

    Raises:
        UserError: it has not.
    """
    if task.part is None:
        # Each outer fold takes a tenth of a class, rounded up, from the rows of the search.
        learned, needed = task.label, FOLDS if not search else FOLDS + 2
    elif search and not (task.part == DEV).any():
        learned, needed = task.label[task.part == TRAIN], FOLDS
    else:
        return
    counts = np.bincount(learned, minlength=len(task.classes))
    rare = [k for k, count in enumerate(counts) if count < needed and (count or task.part is None)]
    if rare:
        raise UserError(
            f"{task.name}: label {task.classes[rare[0]]} has {counts[rare[0]]} rows to learn from; {FOLDS} folds"
            f"{' with a search' if search else ''} need at least {needed}"
        )


def joined(name: str, parts: Sequence[Features]) -> Features:
    """(n, F): the embedding u of a row's text, or |u − v| and u·v of its two texts.

    Args:
        name: the task, for the message.
        parts: one or two arrays (n, D).

    Raises:
        UserError: an embedding is not finite.
    """
    features = parts[0] if len(parts) == 1 else np.concatenate((np.abs(parts[0] - parts[1]), parts[0] * parts[1]), axis=1)
    broken = ~np.isfinite(features).all(1)
    if broken.any():
        raise UserError(f"{name}: row {int(broken.argmax()) + 1}: the model's embedding is not finite; the model is damaged")
    return features


def answers(
    label: Numbers, part: NDArray[np.int8] | None, features: Features, *, search: bool, seed: int = FOLD_SEED
) -> pa.Table:
    """Fit both classifiers on the training rows and see what they get right on the test rows.

    With a fixed split these are its parts. Without one, the rows are split into ten folds with equal shares of each class. Each
    fold is tested by classifiers that learned from the other nine.

    Args:
        label: (n,).
        part: (n,) positions in `TASK_PARTS`; None without a fixed split.
        features: (n, F).
        search: choose C among `SEARCHED_C`, on the development rows if there are any, otherwise by ten folds of the training
            rows; otherwise C is `FIXED_C`.
        seed: decides the folds.

    Returns:
        Table of a row for each test row: row (its number), logistic and mean_classifier (whether each is right) and majority
        (whether the row has the most frequent class of the training rows).
    """
    every = np.arange(len(label))
    # Without a fixed split, all of these are empty.
    train, dev, test = (np.flatnonzero(part == one) for one in (TRAIN, DEV, TEST))
    parts = _folds(label, every, seed) if part is None else [(train, test)]

    def right(c: float, train: Numbers, test: Numbers) -> NDArray[np.bool_]:
        model = LogisticRegression(C=c, max_iter=1000).fit(features[train], label[train])
        return model.predict(features[test]) == label[test]

    def best_c(train: Numbers) -> float:
        """The value of C with the most right answers; the smallest of several."""
        folds = [(train, dev)] if len(dev) else _folds(label, train, seed)
        tried = [(c, *fold) for c in SEARCHED_C for fold in folds]
        counts = [int(found.sum()) for found in pool.map(right, *zip(*tried, strict=True))]
        return SEARCHED_C[int(np.reshape(counts, (len(SEARCHED_C), -1)).sum(1).argmax())]

    # Fits that run at the same time must not each start a thread for every core.
    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen = [best_c(train) if search else FIXED_C for train, _ in parts]
        logistic = list(pool.map(right, chosen, *zip(*parts, strict=True)))
    columns: dict[str, list[NDArray[Any]]] = {"row": [test for _, test in parts], "logistic": logistic}
    columns |= {"mean_classifier": [], "majority": []}
    for train, test in parts:
        x, y = features[train], label[train]
        classes = np.unique(y)
        means = np.stack([x[y == k].mean(0) for k in classes])
        columns["mean_classifier"].append(classes[(features[test] @ means.T).argmax(1)] == label[test])
        columns["majority"].append(np.bincount(y).argmax() == label[test])
    return pa.table({name: np.concatenate(column) for name, column in columns.items()})


def score_task(means: Features, task: TaskSet, *, search: bool) -> pa.Table:
    """`answers` of a task in a token store; `means`: (S, D) of the sentences of the store."""
    features = joined(task.name, [means[rows] for rows in task.texts])
    return answers(task.label.astype(np.int64), task.part, features, search=search)


def _folds(label: Numbers, rows: Numbers, seed: int) -> list[tuple[Numbers, Numbers]]:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return [(rows[train], rows[test]) for train, test in folds.split(rows, label[rows])]
