"""The profile of prepared data: statistics to look at before training. See `profile`.

The profile counts entailments per premise because the loss uses the other triplets of a batch as negatives. If a batch has two
triplets with the same premise, the entailment of each is a negative of the other although it is entailed: a false negative
(`train.same_premise`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.data.measure import Measure, measured, premise_groups, spread
from pipeline.data.oddities import SCRIPTS, macros
from pipeline.data.schema import LABELS, STS_SUFFIX
from pipeline.data.scratch import Database, database

Profile = dict[str, Any]
"""What profile.json says of pairs: `train`, `dev` and `promotion` (if there are pairs to train on), `tests`, `sts`, `triplets`
and `hypothesis_only`."""

BATCH_SIZES = tuple(2**power for power in range(4, 13))
"""Global batch sizes for which the expected number of false negatives is computed."""
_PAIRS, _TRIPLETS, _DEV = "train/pairs.parquet", "train/triplets.parquet", "dev/dev.parquet"
_PROMOTION = "promotion/promotion.parquet"
_SCRATCH = ".profile"


def profile(
    prepared: Path, counts: Mapping[str, Any], hypothesis_only: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> Profile:
    """Compute statistics of the files of stage prepare, in bounded memory. The same files give the same profile.

    The profile contains no text. Row numbers count from 1, in the order of the set's Parquet file.

    Args:
        prepared: the folder with train/, dev/, promotion/ and tests/. Data that does not fit into memory goes into a hidden
            subfolder, which is removed at the end.
        counts: what `pipeline.families.pairs.prepare.prepare` returned.
        hypothesis_only: set → metric → value of the baseline that never sees the premise.

    Raises:
        UserError: the disk is full.
    """
    scratch = prepared / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with database(scratch) as connection:
            for macro in macros():
                connection.execute(macro)
            parts = {"train": _PAIRS, "dev": _DEV, "promotion": _PROMOTION}
            sets: Profile = {
                **{name: _nli(connection, prepared / path, counts[name]) for name, path in parts.items() if name in counts},
                "tests": {
                    name: _nli(connection, prepared / "tests" / f"{name}.parquet", counts["tests"][name])
                    for name in sorted(counts["tests"])
                },
                "sts": {
                    name: _sts(connection, prepared / "tests" / f"{name}{STS_SUFFIX}.parquet", counts["sts"][name])
                    for name in sorted(counts["sts"])
                },
            }
            groups = premise_groups(connection, prepared / _TRIPLETS) if "train" in counts else []
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {
        **sets,
        "triplets": {
            "all": _of_one_premise((every, premises) for every, _, premises in groups),
            "with_contradiction": _of_one_premise((complete, premises) for _, complete, premises in groups),
        },
        "hypothesis_only": dict(hypothesis_only),
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
        # The counts of stage prepare except labels, which are counted again from the file.
        "counts": {key: value for key, value in counts.items() if key != "labels"},
        "lengths": measure.lengths(),
        "scripts": scripts,
        "dominant_script": dominant,
        "oddities": measure.oddities(dominant),
    }


def _of_one_premise(sizes: Iterable[tuple[int, int]]) -> Profile:
    """From (number of entailments, number of premises with that many): their distribution and the expected false negatives."""
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
    """Expected false negatives in a random batch, for each of `BATCH_SIZES` (or for all triplets, if there are fewer).

    `pairs` is the expected number of ordered pairs of triplets with the same premise, n(n − 1)·Σ e(e − 1) / (T(T − 1)) for n of T
    triplets, summed over premises with e entailments. Each such pair is one false negative in one row of the loss. `per_row` is
    pairs / n.

    Args:
        counts: (e, number of premises with e entailments).
    """
    triplets = sum(e * number for e, number in counts)
    ordered = sum(e * (e - 1) * number for e, number in counts)
    rows: list[dict[str, float]] = []
    for batch in BATCH_SIZES:
        n = min(batch, triplets)
        pairs = n * (n - 1) * ordered / (triplets * (triplets - 1)) if triplets > 1 else 0.0
        rows.append({"batch": batch, "pairs": round(pairs, 4), "per_row": round(pairs / n, 4)})
    return rows
