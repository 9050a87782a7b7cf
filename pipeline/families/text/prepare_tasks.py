"""Transfer tasks of stage prepare: labelled sentences, or pairs of sentences, with their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config.data_params import TaskSpec
from pipeline.data.readers.opening import resolve
from pipeline.data.schema import NO_PART, TASK, TASK_PARTS, TASK_SUFFIX, TASK_TEXTS
from pipeline.data.table_io import ParquetFile
from pipeline.families.text.tasks import Task, read_task


def prepare_tasks(
    tasks: Mapping[str, TaskSpec], root: Path, folder: Path, check: Callable[[Task], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Write each transfer task to NAME.task.parquet; returns task → counts.

    Args:
        check: called with each task before it is written.

    Raises:
        UserError: a file cannot be read, or `check` raised it.
    """
    counts: dict[str, dict[str, Any]] = {}
    for name, spec in sorted(tasks.items()):
        task = read_task(resolve(root, spec.path), spec)
        if check is not None:
            check(task)
        texts = TASK_TEXTS[len(task.texts) - 1]
        part = (
            np.full(len(task.label), NO_PART, np.int8)
            if task.split is None
            else np.array([TASK_PARTS.index(one) for one in task.split.tolist()], np.int8)
        )
        columns = {
            **dict(zip(texts, (pa.array(column, pa.string()) for column in task.texts), strict=True)),
            "label": pa.array([task.classes[k] for k in task.label], pa.string()),
            "class": pa.array(task.label, pa.int32()),
            "part": pa.array(part),
        }
        schema = pa.schema([*((column, pa.string()) for column in texts), *TASK])
        with ParquetFile(folder / f"{name}{TASK_SUFFIX}.parquet", schema) as file:
            file.write(pa.table(columns, schema=schema))
        counts[name] = {"file": spec.path, "rows": len(task.label), "classes": list(task.classes)}
    return counts
