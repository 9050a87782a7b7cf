"""Pairs that section `data` names: set → rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.data_params import DataParams
from pipeline.data.generated import generate
from pipeline.data.generated.premises import Split
from pipeline.data.readers import generated_pairs, open_pairs
from pipeline.data.schema import RawRows
from pipeline.families.pairs.everyday import everyday_pairs
from pipeline.utils.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources of pairs."""

    train: Sequence[RawRows]
    dev: RawRows | None
    """None without pairs to train on."""
    tests: Mapping[str, RawRows]
    sts: Mapping[str, RawRows]


def read_sources(data: DataParams) -> Sources:
    """The unchanged rows of every set in `data`. This only opens the files and checks their columns; iterating reads the rows."""
    if data.source == "generated":
        sizes, share = data.generated, data.generated.everyday_share
        train, dev = _generated("train", sizes.train, share, data.seed), _generated("dev", sizes.dev, share, data.seed)
        tests = {"generated_test": _generated("test", sizes.test, 0, data.seed)}
        if share:
            tests["everyday_test"] = _generated("test", sizes.test, 1, data.seed)
        return Sources(train=[train], dev=dev, tests=tests, sts={})
    sets, sts = (data.hub, {}) if data.source == "hub" else (data.files, data.files.sts)
    read = partial(open_pairs, Path(data.root))
    for name in (*sets.tests, *sts):
        # Stage tokenize uses these names for its own files.
        if name in ("sentences", "triplets"):
            raise UserError(f"data.{data.source}: a test set must not be named {name!r}; rename it")
    return Sources(
        train=[read(spec) for spec in sets.train],
        dev=None if sets.dev is None else read(sets.dev),
        tests={name: read(spec) for name, spec in sorted(sets.tests.items())},
        sts={name: read(spec) for name, spec in sorted(sts.items())},
    )


def _generated(split: Split, pairs: int, everyday_share: float, seed: int) -> RawRows:
    """Generated pairs, of which this share is of everyday sentences."""
    everyday = round(pairs * everyday_share)
    parts = [
        partial(generate, split, pairs - everyday, seed),
        *([partial(everyday_pairs, split, everyday, seed)] if everyday else []),
    ]
    return generated_pairs(*parts)
