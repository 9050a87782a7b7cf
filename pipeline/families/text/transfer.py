"""Transfer tasks: how much a linear classifier learns from frozen embeddings.

After SentEval (Conneau and Kiela 2018), with these differences: C is fixed unless it is searched; the search has one list of
values for all tasks, which holds both of SentEval's; the right answers of the folds are added up, where SentEval averages the
folds' accuracies; the seed of the folds is a parameter (SentEval's is 1111); the regression of several classes is multinomial
(SentEval's was one-vs-rest or a small network); only the accuracy is computed. The mean classifier is that of Arora et al., "A
Theoretical Analysis of Contrastive Unsupervised Representation Learning" (2019), section 2.

Shapes: n rows, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from pipeline.data.schema import TASK_PARTS
from pipeline.data.token_sets import TaskSet
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.families.text.tasks import Task

TRAIN, DEV, TEST = TASK_PARTS
FOLDS = 10
FOLD_SEED = 1111
"""That of SentEval."""
FIXED_C = 1.0
SEARCHED_C = tuple(2.0**power for power in range(-2, 6))
"""1 / (the weight of the squared norm)."""

Features = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answers:
    """What was right on each of the t test rows. Without a fixed split, every row is tested once."""

    row: Rows
    """(t,) row numbers."""
    logistic: NDArray[np.bool_]
    mean_classifier: NDArray[np.bool_]
    majority: NDArray[np.bool_]
    """Whether the row has the most frequent class of the training rows."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The accuracies on one task, in percent of the test rows."""

    logistic: float
    mean_classifier: float
    majority: float
    rows: int
    """Test rows."""


def check(task: Task, *, search: bool) -> None:
    """Whether the task has enough rows of each class for the folds.

    Raises:
        UserError: it has not.
    """
    if task.split is None:
        # Each outer fold takes a tenth of a class, rounded up, from the rows of the search.
        learned, needed = task.label, FOLDS if not search else FOLDS + 2
    elif search and not (task.split == DEV).any():
        learned, needed = task.label[task.split == TRAIN], FOLDS
    else:
        return
    counts = np.bincount(learned, minlength=len(task.classes))
    rare = [k for k, count in enumerate(counts) if count < needed and (count or task.split is None)]
    if rare:
        raise UserError(
            f"{task.name}: label {task.classes[rare[0]]} has {counts[rare[0]]} rows to learn from; {FOLDS} folds"
            f"{' with a search' if search else ''} need at least {needed}"
        )


def features_of(task: Task, encode: Callable[[Sequence[str]], Features]) -> Features:
    """(n, F) features of a task's rows; see `joined`.

    Args:
        encode: m texts → (m, D).

    Raises:
        UserError: an embedding is not finite.
    """
    return joined(task.name, [encode(texts) for texts in task.texts])


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


def transfer(task: Task, features: Features, *, search: bool, seed: int, threads: int = 1) -> Transfer:
    """The accuracies of both classifiers on a task that `check` accepts; arguments as `answers`."""
    found = answers(task.label, task.split, features, search=search, seed=seed, threads=threads)
    logistic, mean_classifier, majority = (
        100 * float(right.mean()) for right in (found.logistic, found.mean_classifier, found.majority)
    )
    return Transfer(logistic, mean_classifier, majority, len(found.row))


def answers(
    label: Rows, split: NDArray[np.str_] | None, features: Features, *, search: bool, seed: int = FOLD_SEED, threads: int = 1
) -> Answers:
    """Fit both classifiers on the training rows and see what they get right on the test rows.

    With a fixed split these are its parts. Without one, the rows are split into ten folds with equal shares of each class. Each
    fold is tested by classifiers that learned from the other nine.

    Args:
        label: (n,).
        split: (n,) of train, dev or test; None without a fixed split.
        features: (n, F).
        search: choose C among `SEARCHED_C`, on the development rows if there are any, otherwise by ten folds of the training
            rows; otherwise C is `FIXED_C`.
        seed: decides the folds.
        threads: fits that run at the same time. The result is the same for any number.
    """
    if split is not None:
        train, dev, test = (np.flatnonzero(split == part) for part in (TRAIN, DEV, TEST))
        parts = [(train, dev, test)]
    else:
        everything = np.arange(len(label))
        parts = [(train, everything[:0], test) for train, test in _folds(label, everything, seed)]
    fits = partial(_Fold, features, label)
    # Fits that run at the same time must not each start a thread for every core.
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        chosen = [FIXED_C] * len(parts)
        if search:
            chosen = [_best_c(label, fits, train, dev, seed, pool) for train, dev, _ in parts]
        folds = [fits(train, test) for train, _, test in parts]
        logistic = list(pool.map(_Fold.logistic_right, folds, chosen))
    by_means, frequent = zip(*(fold.simple_right() for fold in folds), strict=True)
    rows = np.concatenate([test for *_, test in parts])
    return Answers(rows, np.concatenate(logistic), np.concatenate(by_means), np.concatenate(frequent))


def score_task(means: Features, task: TaskSet, *, search: bool, threads: int) -> pa.Table:
    """What both classifiers learn of a task in a token store.

    Args:
        means: (S, D) of the sentences of the store.
        search: search the regression's C (`evaluate.transfer_search`).
        threads: as in `answers`.

    Returns:
        Table of a row for each test row: row (its number), logistic, mean_classifier and majority (whether each is right).
    """
    features = joined(task.name, [means[rows] for rows in task.texts])
    split = None if task.part is None else np.array(TASK_PARTS)[task.part]
    found = answers(task.label.astype(np.int64), split, features, search=search, threads=threads)
    return pa.table({name: getattr(found, name) for name in ("row", "logistic", "mean_classifier", "majority")})


@dataclass(frozen=True, slots=True)
class _Fold:
    """Rows to learn from and rows to test on; the answers are whether these were right."""

    features: Features
    label: Rows
    train: Rows
    test: Rows

    def logistic_right(self, c: float) -> NDArray[np.bool_]:
        model = LogisticRegression(C=c, max_iter=1000).fit(self.features[self.train], self.label[self.train])
        return model.predict(self.features[self.test]) == self.label[self.test]

    def simple_right(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """By the mean classifier, and by the most frequent class."""
        x, y = self.features[self.train], self.label[self.train]
        classes = np.unique(y)
        means = np.stack([x[y == k].mean(0) for k in classes])
        by_means = classes[(self.features[self.test] @ means.T).argmax(1)]
        return by_means == self.label[self.test], np.bincount(y).argmax() == self.label[self.test]


def _folds(label: Rows, rows: Rows, seed: int) -> list[tuple[Rows, Rows]]:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return [(rows[train], rows[test]) for train, test in folds.split(rows, label[rows])]


def _best_c(
    label: Rows, fits: Callable[[Rows, Rows], _Fold], train: Rows, dev: Rows, seed: int, pool: ThreadPoolExecutor
) -> float:
    """The value of C with the most right answers; the smallest of several."""
    folds = [fits(*part) for part in ([(train, dev)] if len(dev) else _folds(label, train, seed))]
    tried = [(fold, c) for c in SEARCHED_C for fold in folds]
    right = list(pool.map(lambda pair: int(pair[0].logistic_right(pair[1]).sum()), tried))
    return SEARCHED_C[int(np.reshape(right, (len(SEARCHED_C), -1)).sum(1).argmax())]
