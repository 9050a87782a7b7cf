"""The data sets of a pipeline run in the form that MLflow logs, read from the profile of stage prepare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.paths import PREPARED
from pipeline.data.schema import (
    DEV,
    DEV_OPERATIONS,
    DEV_TEXT,
    OPERATIONS_SUFFIX,
    PROMOTION_OPERATIONS,
    PROMOTION_TEXT,
    STS_SUFFIX,
    TASK_SUFFIX,
    TEXT_SUFFIX,
)

# MLflow's maximum length of a digest.
_DIGEST_LENGTH = 36


@dataclass(frozen=True, slots=True)
class DataSet:
    """One file of data/prepared. `source`, `schema` and `profile` are JSON."""

    name: str
    context: Literal["training", "validation", "testing"]
    digest: str
    """The first characters of the file's SHA-256; `source` has all of it."""
    source: str
    schema: str
    profile: str


def data_sets(profile: Mapping[str, Any]) -> list[DataSet]:
    """The training triplets, text and operation rows, the development sets and every test set."""
    sets: list[DataSet] = []
    if "train" in profile:
        complete = profile["triplets"]["with_contradiction"]["triplets"]
        counts = {"with_contradiction": complete, "labels_of_pairs": profile["train"]["labels"]}
        sets.append(_data_set(profile, "train", "training", "train/triplets.parquet", counts))
        sets.append(_data_set(profile, "dev", "validation", "dev/dev.parquet", {"labels": profile["dev"]["labels"]}))
    for kind, rows, suffix in (("text", "documents", TEXT_SUFFIX), ("operations", "operations", OPERATIONS_SUFFIX)):
        for name, counts in profile[kind].items():
            if name == "train":
                sets.append(_data_set(profile, f"train_{kind}", "training", f"train/{rows}.parquet", {kind: counts}))
            elif name not in (PROMOTION_TEXT, PROMOTION_OPERATIONS):
                place, context = (DEV, "validation") if name in (DEV_TEXT, DEV_OPERATIONS) else ("tests", "testing")
                sets.append(_data_set(profile, name, context, f"{place}/{name}{suffix}.parquet", {kind: counts}))
    for name in profile["tasks"]:
        sets.append(_data_set(profile, name, "testing", f"tests/{name}{TASK_SUFFIX}.parquet", {}))
    for name, part in profile["tests"].items():
        sets.append(_data_set(profile, name, "testing", f"tests/{name}.parquet", {"labels": part["labels"]}))
    for name in profile["sts"]:
        graded = name + STS_SUFFIX
        sets.append(_data_set(profile, graded, "testing", f"tests/{graded}.parquet", {}))
    return sets


def _data_set(
    profile: Mapping[str, Any],
    name: str,
    context: Literal["training", "validation", "testing"],
    file: str,
    counts: Mapping[str, Any],
) -> DataSet:
    about = profile["files"][file]
    columns = [{"name": column, "type": kind, "required": False} for column, kind in about["columns"]]
    return DataSet(
        name=name,
        context=context,
        digest=about["sha256"][:_DIGEST_LENGTH],
        source=json.dumps({"uri": (PREPARED / file).as_posix(), "sha256": about["sha256"]}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"num_rows": about["rows"], **counts}),
    )
