"""Transfer tasks: how much a linear classifier learns from frozen embeddings, by SentEval's protocol.

Source: Conneau and Kiela, "SentEval" (2018). The mean classifier is that of Arora et al., "A Theoretical Analysis of Contrastive
Unsupervised Representation Learning" (2019), section 2.

Shapes: n rows, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from pipeline.data.readers.tasks import DEV, TEST, TRAIN, Task
from pipeline.utils.errors import UserError

FOLDS = 10
FIXED_C = 1.0
SEARCHED_C = tuple(2.0**power for power in range(-2, 4))
"""SentEval's values of 1 / (the weight of the squared norm)."""

Features = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Transfer:
    """The accuracies on one task, in percent of the test rows."""

    logistic: float
    mean_classifier: float
    majority: float
    """Of the most frequent class of the training rows."""
    rows: int
    """Test rows; without a fixed split all rows are, each once."""


def features_of(task: Task, encode: Callable[[Sequence[str]], Features]) -> Features:
    """(n, F): the embedding u of a row's text, or |u − v| and u·v of its two texts.

    Args:
        encode: m texts → (m, D).
    """
    if len(task.texts) == 1:
        return encode(task.texts[0])
    u, v = (encode(texts) for texts in task.texts)
    return np.concatenate((np.abs(u - v), u * v), axis=1)


def transfer(task: Task, features: Features, *, search: bool, seed: int, threads: int = 1) -> Transfer:
    """Fit both classifiers on the training rows and count what they get right on the test rows.

    With a fixed split these are its parts. Without one, each tenth is tested by classifiers of the other nine, in tenths with
    equal shares of each class.

    Args:
        features: (n, F).
        search: choose C among `SEARCHED_C`, on the development rows if there are any, otherwise by ten folds of the training
            rows; otherwise C is `FIXED_C`.
        seed: decides the folds.
        threads: of the fits, which run side by side. The result is the same for any number.

    Raises:
        UserError: a class has too few rows for the folds.
    """
    label, split = task.label, task.split
    if split is not None:
        train, dev, test = (np.flatnonzero(split == part) for part in (TRAIN, DEV, TEST))
        parts = [(train, dev, test)]
    else:
        parts = [(train, np.zeros(0, np.int64), test) for train, test in _folds(task, np.arange(len(label)), seed)]
    fits = partial(_Fold, features, label)
    # Threads that fit side by side must not each start a thread for every core.
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        chosen = [FIXED_C] * len(parts)
        if search:
            chosen = [_best_c(task, fits, train, dev, seed, pool) for train, dev, _ in parts]
        folds = [fits(train, test) for train, _, test in parts]
        logistic_right = sum(pool.map(_Fold.logistic_right, folds, chosen))
    by_means, frequent = (sum(counts) for counts in zip(*(fold.simple_right() for fold in folds), strict=True))
    rows = sum(len(test) for _, _, test in parts)
    return Transfer(100 * logistic_right / rows, 100 * by_means / rows, 100 * frequent / rows, rows)


@dataclass(frozen=True, slots=True)
class _Fold:
    """Rows to learn from and rows to test on; the counts are of right answers on these."""

    features: Features
    label: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]

    def logistic_right(self, c: float) -> int:
        model = LogisticRegression(C=c, max_iter=1000).fit(self.features[self.train], self.label[self.train])
        return self._count(model.predict(self.features[self.test]))

    def simple_right(self) -> tuple[int, int]:
        """By the mean classifier, and by the most frequent class."""
        x, y = self.features[self.train], self.label[self.train]
        classes = np.unique(y)
        means = np.stack([x[y == k].mean(0) for k in classes])
        by_means = classes[(self.features[self.test] @ means.T).argmax(1)]
        return self._count(by_means), self._count(np.bincount(y).argmax())

    def _count(self, predicted: NDArray[np.int64] | np.int64) -> int:
        return int((predicted == self.label[self.test]).sum())


def _folds(task: Task, rows: NDArray[np.int64], seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    counts = np.bincount(task.label[rows], minlength=len(task.classes))
    if counts.min() < FOLDS:
        rarest = task.classes[int(counts.argmin())]
        raise UserError(f"{task.name}: label {rarest} has {counts.min()} training rows; {FOLDS} folds need at least {FOLDS}")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return [(rows[train], rows[test]) for train, test in folds.split(rows, task.label[rows])]


def _best_c(
    task: Task,
    fits: Callable[[NDArray[np.int64], NDArray[np.int64]], _Fold],
    train: NDArray[np.int64],
    dev: NDArray[np.int64],
    seed: int,
    pool: ThreadPoolExecutor,
) -> float:
    """The value of C with the most right answers; the smallest of several."""
    folds = [fits(*part) for part in ([(train, dev)] if len(dev) else _folds(task, train, seed))]
    tried = [(fold, c) for c in SEARCHED_C for fold in folds]
    right = list(pool.map(lambda pair: pair[0].logistic_right(pair[1]), tried))
    return SEARCHED_C[int(np.reshape(right, (len(SEARCHED_C), -1)).sum(1).argmax())]
