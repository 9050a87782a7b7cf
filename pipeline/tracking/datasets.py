"""The data sets of a pipeline run in the form that MLflow logs, read from the profile of stage prepare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.paths import PREPARED
from pipeline.data.schema import DEV, STS_SUFFIX, TARGETS_SUFFIX, TASK_SUFFIX
from pipeline.families.family import families

# MLflow's maximum length of a digest.
_DIGEST_LENGTH = 36


_CONTEXTS: Mapping[str, Literal["validation", "testing"]] = {"dev": "validation", "tests": "testing"}


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
    """The rows that are trained on, the development sets and every test set."""
    kinds = {family.row_kind: family for family in families()}
    complete = profile.get("triplets", {}).get("with_contradiction", {}).get("triplets")
    sets: list[DataSet] = []
    for file in sorted(profile["files"], key=lambda name: (not name.startswith("train/"), not name.startswith("dev/"), name)):
        folder, _, stem = file.removesuffix(".parquet").partition("/")
        name, _, suffix = stem.partition(".")
        if folder == "train" and name in kinds:
            family = kinds[name]
            if family is families()[0]:
                counts = {"with_contradiction": complete, "labels_of_pairs": profile["train"]["labels"]}
                sets.append(_data_set(profile, "train", "training", file, counts))
            else:
                counts = {family.name: profile[family.profiled]["train"]}
                sets.append(_data_set(profile, f"train_{family.name}", "training", file, counts))
        elif folder in _CONTEXTS and f".{suffix}" != TARGETS_SUFFIX:
            # Graded sets keep the suffix of their file.
            shown = stem if stem.endswith(STS_SUFFIX) else name
            sets.append(_data_set(profile, shown, _CONTEXTS[folder], file, _counts(profile, name, suffix)))
    return sets


def _counts(profile: Mapping[str, Any], name: str, suffix: str) -> dict[str, Any]:
    """What the profile says of a set: the labels of pairs, the counts of the others."""
    if not suffix:
        return {"labels": (profile[DEV] if name == DEV else profile["tests"][name])["labels"]}
    counts = profile.get(suffix, {}).get(name) if f".{suffix}" not in (STS_SUFFIX, TASK_SUFFIX) else None
    return {suffix: counts} if counts else {}


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
