"""Pairs that section `data` names: set → rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.data_params import DataParams
from pipeline.data.readers import read_generated, read_hub_pairs, read_pairs, read_sts
from pipeline.data.rows import Rows
from pipeline.utils.errors import UserError

RESERVED = ("sentences", "triplets")
"""Names that stage tokenize uses for its own files, so no set may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources of pairs."""

    train: Sequence[Rows]
    dev: Rows | None
    """None without pairs to train on."""
    tests: Mapping[str, Rows]
    sts: Mapping[str, Rows]


def read_sources(data: DataParams) -> Sources:
    """The unchanged rows of every set in `data`. This only opens the files and checks their columns; iterating reads the rows."""
    if data.source == "generated":
        return Sources(
            train=[read_generated("train", data.generated.train, data.seed)],
            dev=read_generated("dev", data.generated.dev, data.seed),
            tests={"generated_test": read_generated("test", data.generated.test, data.seed)},
            sts={},
        )
    root, hub = Path(data.root), data.source == "hub"
    sets, sts = (data.hub, {}) if hub else (data.files, data.files.sts)
    read: Callable[[Any], Rows] = partial(read_hub_pairs if hub else read_pairs, root)
    for name in (*sets.tests, *sts):
        if name in RESERVED:
            raise UserError(f"data.{data.source}: a test set must not be named {name!r}; rename it")
    return Sources(
        train=[read(spec) for spec in sets.train],
        dev=None if sets.dev is None else read(sets.dev),
        tests={name: read(spec) for name, spec in sorted(sets.tests.items())},
        sts={name: read_sts(root, spec) for name, spec in sorted(sts.items())},
    )
