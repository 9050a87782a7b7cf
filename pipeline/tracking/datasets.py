"""The data sets of a pipeline run in the form that MLflow logs, read from the profile of stage prepare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.paths import PREPARED
from pipeline.data.schema import STS_SUFFIX

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
    """The training triplets, the development set and every test set."""
    triplets, dev = profile["triplets"], profile["dev"]
    sets = [
        _data_set(
            profile,
            "train",
            "training",
            "train/triplets.parquet",
            {"with_contradiction": triplets["with_contradiction"]["triplets"], "labels_of_pairs": profile["train"]["labels"]},
        ),
        _data_set(profile, "dev", "validation", "dev/dev.parquet", {"labels": dev["labels"]}),
    ]
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
