"""The sets of running text, and transfer tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.data.schema import TASK_PARTS
from pipeline.data.token_sets import read_task, read_text
from pipeline.evaluation import bootstrap
from pipeline.evaluation.bootstrap import Statistic
from pipeline.evaluation.set_kind import Encoded, Hard, SetKind, Tables, columns_of


class _Shares(SetKind):
    """Sets whose tables say of each row what was right, in columns of booleans."""

    def metrics(self, name: str, tables: Tables, params: EvaluateParams, hard: Hard) -> dict[str, float]:
        """The share of right rows, × 100, for each column that says what was right."""
        rows = len(tables[name])
        right = _right(tables[name]) if rows else {}
        return {"pairs": rows, **{column: 100 * float(values.mean()) for column, values in right.items()}}

    def statistics(self, name: str, tables: Tables, params: EvaluateParams) -> dict[str, Statistic]:
        """These shares, but for `majority`, which no model changes."""
        right = _right(tables[name])
        return {column: bootstrap.share(values) for column, values in right.items() if column != "majority"}


def _right(table: pa.Table) -> dict[str, NDArray[np.bool_]]:
    return {column: values for column, values in columns_of(table).items() if values.dtype == np.bool_}


class RunningText(_Shares):
    """Documents, to find the next sentence in."""

    key = "text_sets"
    marker = "next_sentence"
    same = ("document",)

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_text`."""
        from pipeline.families.text.scoring import score_text

        return score_text(encoded.sentences[store], read_text(store, name), encoded.objective)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """The documents."""
        from pipeline.families.text.running_text import neighbours

        document = read_text(store, name).document
        return document[neighbours(document).ravel()]


class TransferTask(_Shares):
    """Texts with classes."""

    key = "task_sets"
    marker = "logistic"
    same = ("row",)
    searches = True

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`transfer.score_task`."""
        from pipeline.families.text.transfer import score_task

        means = encoded.sentences[store].mean.float().cpu().numpy()
        return score_task(means, read_task(store, name), search=encoded.search)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """Each row is drawn alone."""
        task = read_task(store, name)
        return np.arange(len(task) if task.part is None else (task.part == TASK_PARTS.index("test")).sum())


SETS = (RunningText(), TransferTask())
