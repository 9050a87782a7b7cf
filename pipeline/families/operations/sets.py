"""The sets of operation rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.data.token_sets import read_operations_set, read_targets, set_names
from pipeline.data.token_store import open_store
from pipeline.evaluation import bootstrap
from pipeline.evaluation.bootstrap import Statistic
from pipeline.evaluation.set_kind import Encoded, SetKind, columns_of


class OperationRows(SetKind):
    """Inputs of an operator, and its target."""

    key = "operation_sets"
    marker = "operation"
    same = ("operation", "row")

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_operations`."""
        import torch

        from pipeline.families.operations.scoring import TrainingTargets, score_operations
        from pipeline.models.encoder import GaussianEncoder

        encoder = GaussianEncoder.from_pretrained(encoded.model)
        means = {folder: sentences.mean.float().cpu() for folder, sentences in encoded.sentences.items()}
        training = None
        for folder, target in ((one, target) for one in means for target in set_names(one).targets):
            opened, rows = open_store(folder), read_targets(folder, target)
            training = TrainingTargets(
                operation=rows.operation,
                mean=means[folder][torch.from_numpy(rows.sentence.astype(np.int64))],
                ids=lambda k, opened=opened, rows=rows: opened[int(rows.sentence[k])].tolist(),
            )
            break
        return score_operations(encoder, means[store], open_store(store), read_operations_set(store, name), training)

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """The whole sentences."""
        return read_operations_set(store, name).whole

    def metrics(
        self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams, hard: Mapping[str, NDArray[Any]]
    ) -> dict[str, float]:
        """`scoring.operation_metrics`."""
        from pipeline.families.operations.scoring import operation_metrics

        return operation_metrics(tables[name])

    def statistics(self, name: str, tables: Mapping[str, pa.Table], params: EvaluateParams) -> dict[str, Statistic]:
        """MRR of the operators, the mean over operations."""
        columns = columns_of(tables[name])
        return {"operator_mrr": bootstrap.mean_over(columns["operation"], columns["operator_mrr"])}


SETS = (OperationRows(),)
