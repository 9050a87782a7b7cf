"""The data sets of a pipeline run in the form that MLflow logs, read from the profile of stage prepare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.paths import PREPARED
from pipeline.data.schema import STS_SUFFIX, TARGETS_SUFFIX
from pipeline.families.family import families

_CONTEXTS: Mapping[str, Literal["training", "validation", "testing"]] = {
    "train": "training",
    "dev": "validation",
    "tests": "testing",
}


@dataclass(frozen=True, slots=True)
class DataSet:
    """One file of data/prepared."""

    name: str
    context: Literal["training", "validation", "testing"]
    digest: str
    """The first characters of the file's SHA-256; `source` has all of it."""
    source: str
    """As JSON."""
    schema: str
    """As JSON."""
    rows: int


def data_sets(profile: Mapping[str, Any]) -> list[DataSet]:
    """The rows that are trained on, the development sets and every test set."""
    trained = {family.row_kind: "train" if family is families()[0] else f"train_{family.name}" for family in families()}
    sets: list[DataSet] = []
    for folder, context in _CONTEXTS.items():
        for file, about in sorted(profile["files"].items()):
            part, _, stem = file.removesuffix(".parquet").partition("/")
            if part != folder or stem.endswith(TARGETS_SUFFIX) or (folder == "train" and stem not in trained):
                continue
            # Graded sets keep the suffix of their file.
            name = trained[stem] if folder == "train" else stem if stem.endswith(STS_SUFFIX) else stem.partition(".")[0]
            columns = [{"name": column, "type": kind, "required": False} for column, kind in about["columns"]]
            sets.append(
                DataSet(
                    name=name,
                    context=context,
                    # MLflow's maximum length of a digest.
                    digest=about["sha256"][:36],
                    source=json.dumps({"uri": (PREPARED / file).as_posix(), "sha256": about["sha256"]}),
                    schema=json.dumps({"mlflow_colspec": columns}),
                    rows=about["rows"],
                )
            )
    return sets
