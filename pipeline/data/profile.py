"""The profile of prepared data: what a person should know of it before training on it. See `profile`.

Why entailments of one premise are counted: the loss sees the other triplets of a batch as negatives. Two triplets of one premise
in a batch make the entailment of each a negative of the other, although it is entailed: a false negative (`train.same_premise`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.baselines import MAX_SCORED_PAIRS, MAX_TRAINING_PAIRS, hypothesis_only, read_hypotheses
from pipeline.data.measure import Measure, measured, premise_groups, spread
from pipeline.data.oddities import SCRIPTS, macros
from pipeline.data.schema import LABELS, STS_SUFFIX
from pipeline.data.scratch import Database, database
from pipeline.metrics import EntailmentIf

Profile = dict[str, Any]
"""The content of profile.json: `train`, `dev`, `promotion`, `tests` and `sts` as in prepare.json; `triplets`, `hypothesis_only`
and `files`."""

BATCH_SIZES = tuple(2**power for power in range(4, 13))
"""Global batch sizes for which false negatives are expected."""
_PAIRS, _TRIPLETS, _DEV = "train/pairs.parquet", "train/triplets.parquet", "dev/dev.parquet"
_PROMOTION = "promotion/promotion.parquet"
_SCRATCH = ".profile"


def profile(
    prepared: Path, counts: Mapping[str, Any], threshold_step: float = 0.001, entailment_if: EntailmentIf = ">="
) -> Profile:
    """Count what the files of stage prepare hold. Memory does not grow with them; the same files give the same profile.

    No text goes into it. Row numbers count from 1, in the order of the set's Parquet file.

    Args:
        prepared: with train/, dev/, promotion/ and tests/; what does not fit into memory is kept in a hidden folder in
            it, which is then removed.
        counts: content of prepare.json, `sha256` included.
        threshold_step: of section evaluate, for the hypothesis-only baseline.
        entailment_if: the same.

    Raises:
        UserError: the disk is full.
    """
    scratch = prepared / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with database(scratch) as connection:
            for macro in macros():
                connection.execute(macro)
            sets = {
                "train": _nli(connection, prepared / _PAIRS, counts["train"]),
                "dev": _nli(connection, prepared / _DEV, counts["dev"]),
                "promotion": _nli(connection, prepared / _PROMOTION, counts["promotion"]),
                "tests": {
                    name: _nli(connection, prepared / "tests" / f"{name}.parquet", counts["tests"][name])
                    for name in sorted(counts["tests"])
                },
                "sts": {
                    name: _sts(connection, prepared / "tests" / f"{name}{STS_SUFFIX}.parquet", counts["sts"][name])
                    for name in sorted(counts["sts"])
                },
            }
            groups = premise_groups(connection, prepared / _TRIPLETS)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {
        **sets,
        "source": counts["source"],
        "triplets": {
            "all": _of_one_premise((every, premises) for every, _, premises in groups),
            "with_contradiction": _of_one_premise((complete, premises) for _, complete, premises in groups),
        },
        "hypothesis_only": _hypothesis_only(prepared, sorted(counts["tests"]), threshold_step, entailment_if),
        "files": {name: _file(prepared / name, digest) for name, digest in sorted(counts["sha256"].items())},
    }


def _nli(connection: Database, path: Path, counts: Mapping[str, Any]) -> Profile:
    measure = measured(connection, path, ("premise", "hypothesis"), "label")
    labels = measure.labels()
    return _common(measure, counts) | {
        "labels": {label: labels.get(label, 0) for label in LABELS},
        "direction": measure.direction(),
    }


def _sts(connection: Database, path: Path, counts: Mapping[str, Any]) -> Profile:
    return _common(measured(connection, path, ("sentence1", "sentence2"), None), counts)


def _common(measure: Measure, counts: Mapping[str, Any]) -> Profile:
    scripts = measure.scripts()
    dominant = max(scripts, key=lambda script: (script != SCRIPTS[0], scripts[script]))
    return {
        # What stage prepare counted of the set, labels aside, which are counted anew.
        "counts": {key: value for key, value in counts.items() if key != "labels"},
        "lengths": measure.lengths(),
        "scripts": scripts,
        "dominant_script": dominant,
        "oddities": measure.oddities(dominant),
    }


def _of_one_premise(sizes: Iterable[tuple[int, int]]) -> Profile:
    """From (entailments, premises that have so many): how they are spread, and the false negatives to expect."""
    premises: dict[int, int] = {}
    for entailments, number in sizes:
        if entailments:
            premises[entailments] = premises.get(entailments, 0) + number
    counts = sorted(premises.items())
    triplets = sum(e * number for e, number in counts)
    if not triplets:
        return {"triplets": 0}
    return {
        "triplets": triplets,
        "premises": sum(number for _, number in counts),
        "entailments_per_premise": spread(counts),
        "expected_false_negatives": expected_false_negatives(counts),
    }


def expected_false_negatives(counts: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
    """What a batch drawn at random is expected to hold, for each of `BATCH_SIZES` (or all triplets, where they are fewer).

    `pairs` is the number of ordered pairs of triplets of one premise, n(n − 1)·Σ e(e − 1) / (T(T − 1)) for n of T triplets and e
    entailments of a premise; each makes one false negative in one row of the loss. `per_row` is pairs / n.

    Args:
        counts: (e, premises that have so many).
    """
    triplets = sum(e * number for e, number in counts)
    ordered = sum(e * (e - 1) * number for e, number in counts)
    rows: list[dict[str, float]] = []
    for batch in BATCH_SIZES:
        n = min(batch, triplets)
        pairs = n * (n - 1) * ordered / (triplets * (triplets - 1)) if triplets > 1 else 0.0
        rows.append({"batch": batch, "pairs": round(pairs, 4), "per_row": round(pairs / n, 4)})
    return rows


def _hypothesis_only(
    prepared: Path, tests: Sequence[str], step: float, entailment_if: EntailmentIf
) -> dict[str, dict[str, float]]:
    found = hypothesis_only(
        read_hypotheses(prepared / _PAIRS, MAX_TRAINING_PAIRS),
        read_hypotheses(prepared / _DEV, MAX_SCORED_PAIRS),
        {name: read_hypotheses(prepared / "tests" / f"{name}.parquet", MAX_SCORED_PAIRS) for name in tests},
        step,
        entailment_if,
    )
    return {name: {key: round(value, 4) for key, value in numbers.items()} for name, numbers in found.items()}


def _file(path: Path, digest: str) -> Profile:
    with pq.ParquetFile(path) as file:
        columns = [[field.name, str(field.type)] for field in file.schema_arrow]
        return {"sha256": digest, "rows": file.metadata.num_rows, "columns": columns}
