"""The profile of prepared data: statistics to look at before training. See `profile`.

The profile counts entailments per premise because the loss uses the other triplets of a batch as negatives. If a batch has two
triplets with the same premise, the entailment of each is a negative of the other although it is entailed: a false negative
(`train.same_premise`).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.data.measure import define_macros, measure, premise_groups
from pipeline.data.schema import DEV, PROMOTION, STS_SUFFIX
from pipeline.data.scratch import Database, database

Profile = dict[str, Any]
"""What profile.json says of pairs: `train`, `dev` and `promotion` (if there are pairs to train on), `tests`, `sts`, `triplets`
and `hypothesis_only`."""

BATCH_SIZES = tuple(2**power for power in range(4, 13))
"""Global batch sizes for which the expected number of false negatives is computed."""


def profile(prepared: Path, counts: dict[str, Any]) -> Profile:
    """Compute statistics of the files of stage prepare, in bounded memory. The same files give the same profile.

    The profile contains no text. Row numbers count from 1, in the order of the set's Parquet file.

    Args:
        prepared: the folder with train/, dev/, promotion/ and tests/. Data that does not fit into memory goes into a hidden
            subfolder, which is removed at the end.
        counts: what `pipeline.families.pairs.prepare.prepare` returned; "hypothesis_only" is moved from it into the profile.

    Raises:
        UserError: the disk is full.
    """
    scratch = prepared / ".profile"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with database(scratch) as connection:
            define_macros(connection)
            files = {"train": "train/pairs", DEV: f"{DEV}/{DEV}", PROMOTION: f"{PROMOTION}/{PROMOTION}"}
            sets: Profile = {
                **{name: _set(connection, prepared / file, counts[name]) for name, file in files.items() if name in counts},
                "tests": {name: _set(connection, prepared / "tests" / name, of) for name, of in sorted(counts["tests"].items())},
                "sts": {
                    name: _set(connection, prepared / "tests" / f"{name}{STS_SUFFIX}", of, graded=True)
                    for name, of in sorted(counts["sts"].items())
                },
            }
            groups = premise_groups(connection, prepared / "train/triplets.parquet") if "train" in counts else []
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {
        **sets,
        "triplets": {
            "all": _of_one_premise((every, premises) for every, _, premises in groups),
            "with_contradiction": _of_one_premise((complete, premises) for _, complete, premises in groups),
        },
        "hypothesis_only": counts.pop("hypothesis_only", {}),
    }


def _set(connection: Database, stem: Path, counts: Mapping[str, Any], *, graded: bool = False) -> Profile:
    """The statistics of a set; `stem` is its file without the suffix."""
    sides = ("sentence1", "sentence2") if graded else ("premise", "hypothesis")
    # Labels are counted again from the file.
    own = {"counts": {key: value for key, value in counts.items() if key != "labels"}}
    return own | measure(connection, Path(f"{stem}.parquet"), sides, None if graded else "label")


def _of_one_premise(sizes: Iterable[tuple[int, int]]) -> Profile:
    """From (number of entailments, number of premises with that many): their distribution and the expected false negatives."""
    premises: Counter[int] = Counter()
    for entailments, number in sizes:
        premises[entailments] += number
    del premises[0]
    counts = sorted(premises.items())
    triplets = sum(e * number for e, number in counts)
    if not triplets:
        return {"triplets": 0}
    distinct = sum(number for _, number in counts)
    return {
        "triplets": triplets,
        "premises": distinct,
        "entailments_per_premise": {"mean": round(triplets / distinct, 2), "max": counts[-1][0]},
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
