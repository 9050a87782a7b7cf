"""The sets of operation rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams
from pipeline.data.schema import OPERATIONS
from pipeline.data.token_sets import TargetSet, read_operations_set, read_targets, set_names
from pipeline.data.token_store import open_store
from pipeline.evaluation import bootstrap
from pipeline.evaluation.bootstrap import Statistic
from pipeline.evaluation.set_kind import Encoded, Hard, SetKind, Tables, columns_of


class OperationRows(SetKind):
    """Inputs of an operator, and its target."""

    key = "operation_sets"
    marker = "operation"
    same = ("operation", "row")

    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """`scoring.score_operations`."""
        from pipeline.families.operations.scoring import TrainingTargets, score_operations
        from pipeline.models.encoder import GaussianEncoder

        encoder = GaussianEncoder.from_pretrained(encoded.model)
        means = {folder: sentences.mean.float().cpu() for folder, sentences in encoded.sentences.items()}
        targets = ((folder, targets) for folder in means for targets in set_names(folder, TargetSet))
        kept = (TrainingTargets(read_targets(folder, own), open_store(folder), means[folder]) for folder, own in targets)
        return score_operations(encoder, means[store], open_store(store), read_operations_set(store, name), next(kept, None))

    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """The whole sentences."""
        return read_operations_set(store, name).whole

    def metrics(self, name: str, tables: Tables, params: EvaluateParams, hard: Hard) -> dict[str, float]:
        """`scoring.operation_metrics`."""
        from pipeline.families.operations.scoring import operation_metrics

        return operation_metrics(tables[name])

    def statistics(self, name: str, tables: Tables, params: EvaluateParams) -> dict[str, Statistic]:
        """MRR and recall of the operators: the mean over operations, and of each operation (OPERATION.NAME)."""
        columns = columns_of(tables[name])
        operation = columns["operation"]
        found: dict[str, Statistic] = {}
        for metric in ("operator_mrr", "operator_recall"):
            found[metric] = bootstrap.mean_over(operation, columns[metric])
            for code in np.unique(operation):
                found[f"{OPERATIONS[code]}.{metric}"] = bootstrap.share(columns[metric], operation == code)
        return found


SETS = (OperationRows(),)
