"""The sets of a token store: what is evaluated, as sentence indices (`pipeline.data.token_store` has the sentences)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.data import schema, token_store
from pipeline.data.token_store import Int32s, TokenStore
from pipeline.utils.errors import UserError

SET_COLUMNS = (
    "premise",
    "hypothesis",
    "sentence",
    *(name for names in schema.TASK_TEXTS for name in names),
    *token_store.ROW_KINDS[token_store.OPERATION_ROWS],
)
"""Columns of a set whose cells are sentences; `ROW_KINDS` has those of the rows that are trained on."""


@dataclass(frozen=True, slots=True)
class _Set:
    """n rows; each field is a column."""

    name: str

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[-1].name))


@dataclass(frozen=True, slots=True)
class PairSet(_Set):
    """n labelled pairs as sentence indices."""

    premise: Int32s
    hypothesis: Int32s
    label: npt.NDArray[np.int8]
    """(n,) 0 entailment, 1 neutral, 2 contradiction."""
    reverse_label: npt.NDArray[np.int8]
    """(n,) label of the reversed pair; -1 if unknown."""


@dataclass(frozen=True, slots=True)
class StsSet(_Set):
    """n pairs with a graded similarity, as sentence indices."""

    sentence1: Int32s
    sentence2: Int32s
    score: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextSet(_Set):
    """n sentences of running text, in order."""

    sentence: Int32s
    """(n,) sentence indices."""
    document: Int32s
    """(n,) from 0, never falling."""
    position: Int32s
    """(n,) from 0 within the document."""


@dataclass(frozen=True, slots=True)
class TaskSet(_Set):
    """n rows of a transfer task."""

    texts: tuple[Int32s, ...]
    """One or two arrays (n,) of sentence indices."""
    part: npt.NDArray[np.int8] | None
    """(n,) positions in `pipeline.data.schema.TASK_PARTS`; None without a fixed split."""
    label: Int32s
    """(n,) classes, numbered from 0."""


@dataclass(frozen=True, slots=True)
class OperationSet(_Set):
    """n operation rows as sentence indices."""

    operation: npt.NDArray[np.int8]
    """(n,) positions in `pipeline.data.schema.OPERATIONS`."""
    a: Int32s
    b: Int32s
    """(n,) -1 (`MISSING`) for an operation of one input."""
    target: Int32s

    @property
    def whole(self) -> Int32s:
        """(n,) the sentence that says all of a row: the target of a fusion, else the first input.

        Rows with the same one are not independent: of a sentence and its parts, files give a fusion and a difference.
        """
        return np.where(self.operation == schema.OPERATIONS.index("fusion"), self.target, self.a)


@dataclass(frozen=True, slots=True)
class TargetSet(_Set):
    """n targets of training rows, as sentence indices."""

    operation: npt.NDArray[np.int8]
    """(n,) positions in `pipeline.data.schema.OPERATIONS`."""
    sentence: Int32s


SETS: dict[type[_Set], tuple[str, str]] = {
    PairSet: ("nli_sets", ""),
    StsSet: ("sts_sets", schema.STS_SUFFIX),
    TextSet: ("text_sets", schema.TEXT_SUFFIX),
    TaskSet: ("task_sets", schema.TASK_SUFFIX),
    OperationSet: ("operation_sets", schema.OPERATIONS_SUFFIX),
    TargetSet: ("target_sets", schema.TARGETS_SUFFIX),
}
"""Kind of sets → key of the manifest that lists them, and suffix of their files."""
_S = TypeVar("_S", bound=_Set)

# Row kind → the development set by which its objectives choose a model.
_DEV: dict[str, tuple[type[_Set], str]] = {
    token_store.TRIPLETS: (PairSet, schema.DEV),
    token_store.DOCUMENTS: (TextSet, schema.DEV_TEXT),
    token_store.OPERATION_ROWS: (OperationSet, schema.DEV_OPERATIONS),
}


def set_names(directory: Path, kind: type[_Set]) -> tuple[str, ...]:
    """The names of a store's sets of one kind, sorted."""
    return tuple(token_store.read_manifest(directory).get(SETS[kind][0], ()))


def _read(directory: Path, name: str, kind: type[_S]) -> _S:
    columns = _columns(directory, name, kind)
    return kind(name, *(columns[field.name] for field in fields(kind)[1:]))


def joined(parts: Sequence[PairSet]) -> PairSet:
    """The pairs of several sets of one store, one after the other; the name is the first one's."""
    columns = (np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(PairSet)[1:])
    return PairSet(parts[0].name, *columns)


read_pairs = partial(_read, kind=PairSet)
"""The NLI set `name` (such as `dev` in data/tokens/dev).

Raises:
    UserError: the store does not have this set, or differs from what stage tokenize wrote.
"""
read_sts = partial(_read, kind=StsSet)
"""The STS set `name`; errors as in `read_pairs`."""
read_text = partial(_read, kind=TextSet)
"""The set of running text `name`; errors as in `read_pairs`."""
read_operations_set = partial(_read, kind=OperationSet)
"""The set of operation rows `name`; errors as in `read_pairs`."""
read_targets = partial(_read, kind=TargetSet)
"""The targets of training rows `name`; errors as in `read_pairs`."""


def read_task(directory: Path, name: str) -> TaskSet:
    """The transfer task `name`; errors as in `read_pairs`."""
    columns = _columns(directory, name, TaskSet)
    texts = next(names for names in schema.TASK_TEXTS if names[0] in columns)
    part = None if schema.NO_PART in columns["part"] else columns["part"]
    return TaskSet(name, texts=tuple(columns[text] for text in texts), part=part, label=columns["class"])


def read_dev(directory: Path, kind: str) -> Any:
    """The development set of the objectives over a kind of rows, from data/tokens/dev; errors as in `read_pairs`.

    Returns:
        a `PairSet` for triplets, a `TextSet` for documents, an `OperationSet` for operations.
    """
    set_kind, name = _DEV[kind]
    return _read(directory, name, set_kind)


def _columns(directory: Path, name: str, kind: type[_Set]) -> dict[str, npt.NDArray[Any]]:
    known = set_names(directory, kind)
    if name not in known:
        raise UserError(f"{directory}: has no set {name!r}; it has {', '.join(known) or 'none of this kind'}")
    return token_store.read_table(directory / f"{name}{SETS[kind][1]}.arrow")


def with_own_sentences(store: TokenStore, rows: Any) -> tuple[TokenStore, Any]:
    """A store of the sentences of a set alone, and the set with their numbers there; other rows and their store as they are."""
    if not isinstance(rows, PairSet | TextSet | OperationSet):
        return store, rows
    names = [name for name in SET_COLUMNS if hasattr(rows, name)]
    own, numbers = store.only(*(getattr(rows, name) for name in names))
    return own, replace(rows, **dict(zip(names, numbers, strict=True)))


def trial_digests(train: Path, dev: Path, kind: str) -> tuple[str, str]:
    """`rows_digest` of what a trial reads of two stores, train and dev: the rows of its kind, and its development set.

    Raises:
        UserError: a store does not have them, or differs from what stage tokenize wrote.
    """
    # They say what is missing.
    token_store.read_rows(train, kind)
    read_dev(dev, kind)
    set_kind, name = _DEV[kind]
    return rows_digest(train, kind), rows_digest(dev, f"{name}{SETS[set_kind][1]}")


def rows_digest(directory: Path, table: str) -> str:
    """Hex SHA-256 of the rows of a table and of their sentences: equal for stores with equal rows, whatever else they hold.

    Sentences count as token ids and in their order in the store; their numbers do not count.

    Args:
        table: the name of its file without `.arrow`, such as `triplets`, `dev` or `dev_text.text`.

    Raises:
        UserError: the store does not have the table, or differs from what stage tokenize wrote.
    """
    return _rows_digest_once(directory, table, token_store.digest(directory))


@cache
def _rows_digest_once(directory: Path, table: str, _: str) -> str:
    columns, store = token_store.read_table(directory / f"{table}.arrow"), token_store.open_store(directory)
    names = [name for name in columns if name in token_store.ROW_KINDS.get(table, SET_COLUMNS)]
    used = store.used_by(*(columns[name] for name in names))
    # Separate, so that the limits of shards do not count.
    sums = [hashlib.sha256() for _ in range(3)]
    for part in store.parts_of(used):
        for one, values in zip(sums, part, strict=True):
            one.update(np.ascontiguousarray(values, dtype="<i4").data)
    number = np.append(np.cumsum(used) - 1, token_store.MISSING)
    whole = hashlib.sha256(f"{store.pad_id} {[one.hexdigest() for one in sums]}".encode())
    for name, column in sorted(columns.items()):
        values = number[column].astype("<i4") if name in names else column
        whole.update(f"{name} {values.dtype.str} {len(values)} ".encode() + values.tobytes())
    return whole.hexdigest()
