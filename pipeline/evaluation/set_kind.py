"""The interface of a kind of evaluation set: how it is scored, and what is computed from its table of scores.

Part `sets` of a family (`pipeline.families.family`) lists its kinds as `SETS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.token_store import read_manifest
from pipeline.families.family import families, part

if TYPE_CHECKING:
    from pipeline.config.params import EvaluateParams
    from pipeline.evaluation.bootstrap import Statistic
    from pipeline.families.objective import Objective
    from pipeline.gaussian.distribution import Gaussian
    from pipeline.models.relation_head import Relation

Columns = Mapping[str, NDArray[Any]]
"""The columns of a table of scores."""
Tables = Mapping[str, pa.Table]
"""Set → table of scores of one model."""
Hard = Mapping[str, NDArray[Any]]
"""Set → (n,) whether a pair is hard, for the sets where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A model, and the Gaussians that it gives the sentences of some token stores."""

    model: Path
    """Its folder."""
    objective: Objective
    relation: Relation | None
    sentences: Mapping[Path, Gaussian]
    """Token store → Gaussian of (S, D), on the CPU."""
    search: bool
    """`evaluate.transfer_search`."""


class SetKind(ABC):
    """A kind of evaluation set."""

    key: ClassVar[str]
    """Its names in the manifest of a token store."""
    marker: ClassVar[str]
    """A column that only its tables of scores have."""
    same: ClassVar[tuple[str, ...]]
    """Columns that are equal in the tables of all models: they say which rows were scored."""

    searches: ClassVar[bool] = False
    """Whether scores depend on `evaluate.transfer_search`."""

    @abstractmethod
    def score(self, encoded: Encoded, store: Path, name: str) -> pa.Table:
        """Per-row scores of a set, in the order of its rows.

        Args:
            store: the token store that has the set, one of `encoded.sentences`.
        """

    @abstractmethod
    def groups(self, store: Path, name: str) -> NDArray[Any]:
        """(n,) the group of each row of the table; the bootstrap draws whole groups."""

    @abstractmethod
    def metrics(self, name: str, tables: Tables, params: EvaluateParams, hard: Hard) -> dict[str, float]:
        """Metric → value of the set `name`, in percent, and counts of its rows.

        `tables` has all sets, since a threshold may come from another one.
        """

    @abstractmethod
    def statistics(self, name: str, tables: Tables, params: EvaluateParams) -> dict[str, Statistic]:
        """Metric → its value on rows drawn again, for the metrics that can decide about a promotion. Arguments as `metrics`."""

    def curve(self, table: pa.Table) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
        """Precision, recall and threshold, if the set has such a curve."""
        return None


def kinds_in(store: Path) -> list[tuple[SetKind, str]]:
    """Each set of a token store, with its kind."""
    manifest = read_manifest(store)
    return [
        (kind, name)
        for family in families()
        if any(manifest.get(key) for key in family.sets)
        for kind in part(family, "sets").SETS
        for name in manifest.get(kind.key, ())
    ]


def kind_of(columns: Collection[str]) -> SetKind:
    """The kind of set whose tables have these columns."""
    every = (kind for family in families() for kind in part(family, "sets").SETS)
    return next(kind for kind in every if kind.marker in columns)


def columns_of(table: pa.Table) -> dict[str, NDArray[Any]]:
    """The columns of a table as arrays."""
    return {name: table.column(name).to_numpy() for name in table.column_names}
