"""The profile of prepared data: statistics to look at before training. See `profile`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.data.measure import define_macros, measure
from pipeline.data.schema import DEV, PROMOTION, STS_SUFFIX
from pipeline.data.scratch import Database, database

Profile = dict[str, Any]
"""What profile.json says of pairs: `train`, `dev` and `promotion` (if there are pairs to train on), `tests`, `sts` and
`hypothesis_only`."""


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
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sets | {"hypothesis_only": counts.pop("hypothesis_only", {})}


def _set(connection: Database, stem: Path, counts: Mapping[str, Any], *, graded: bool = False) -> Profile:
    """The statistics of a set; `stem` is its file without the suffix."""
    sides = ("sentence1", "sentence2") if graded else ("premise", "hypothesis")
    # Labels are counted again from the file.
    own = {"counts": {key: value for key, value in counts.items() if key != "labels"}}
    return own | measure(connection, Path(f"{stem}.parquet"), sides, None if graded else "label")
