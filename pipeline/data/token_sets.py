"""The sets of a token store: what is evaluated, as sentence indices (`pipeline.data.token_store` has the sentences)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.data.schema import (
    DEV,
    DEV_OPERATIONS,
    DEV_TEXT,
    NO_PART,
    OPERATIONS,
    OPERATIONS_SUFFIX,
    STS_SUFFIX,
    TARGETS_SUFFIX,
    TASK_SUFFIX,
    TASK_TEXTS,
    TEXT_SUFFIX,
)
from pipeline.data.token_store import (
    DOCUMENTS,
    MISSING,
    OPERATION_ROWS,
    ROW_KINDS,
    TRIPLETS,
    Int32s,
    TokenStore,
    digest,
    open_store,
    read_manifest,
    read_rows,
    read_table,
)
from pipeline.utils.errors import UserError

SET_COLUMNS = (
    "premise",
    "hypothesis",
    "sentence",
    *(name for names in TASK_TEXTS for name in names),
    *ROW_KINDS[OPERATION_ROWS],
)
"""Columns of a set whose cells are sentences; `ROW_KINDS` has those of the rows that are trained on."""


@dataclass(frozen=True, slots=True)
class PairSet:
    """n labelled pairs as sentence indices."""

    name: str
    premise: Int32s
    hypothesis: Int32s
    label: npt.NDArray[np.int8]
    """(n,) 0 entailment, 1 neutral, 2 contradiction."""
    reverse_label: npt.NDArray[np.int8]
    """(n,) label of the reversed pair; -1 if unknown."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, slots=True)
class StsSet:
    """n pairs with a graded similarity, as sentence indices."""

    name: str
    sentence1: Int32s
    sentence2: Int32s
    score: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, slots=True)
class TextSet:
    """n sentences of running text, in order."""

    name: str
    sentence: Int32s
    """(n,) sentence indices."""
    document: Int32s
    """(n,) from 0, never falling."""
    position: Int32s
    """(n,) from 0 within the document."""

    def __len__(self) -> int:
        return len(self.sentence)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """n rows of a transfer task."""

    name: str
    texts: tuple[Int32s, ...]
    """One or two arrays (n,) of sentence indices."""
    label: Int32s
    """(n,) classes, numbered from 0."""
    part: npt.NDArray[np.int8] | None
    """(n,) positions in `pipeline.data.schema.TASK_PARTS`; None without a fixed split."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, slots=True)
class OperationSet:
    """n operation rows as sentence indices."""

    name: str
    operation: npt.NDArray[np.int8]
    """(n,) positions in `pipeline.data.schema.OPERATIONS`."""
    a: Int32s
    b: Int32s
    """(n,) -1 (`MISSING`) for an operation of one input."""
    target: Int32s

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def whole(self) -> Int32s:
        """(n,) the sentence that says all of a row: the target of a fusion, else the first input.

        Rows with the same one are not independent: of a sentence and its parts, files give a fusion and a difference.
        """
        return np.where(self.operation == OPERATIONS.index("fusion"), self.target, self.a)


@dataclass(frozen=True, slots=True)
class TargetSet:
    """n targets of training rows, as sentence indices."""

    name: str
    operation: npt.NDArray[np.int8]
    """(n,) positions in `pipeline.data.schema.OPERATIONS`."""
    sentence: Int32s

    def __len__(self) -> int:
        return len(self.operation)


@dataclass(frozen=True, slots=True)
class SetNames:
    """Names of the sets of a store by kind, sorted."""

    nli: tuple[str, ...]
    sts: tuple[str, ...]
    text: tuple[str, ...]
    tasks: tuple[str, ...]
    operations: tuple[str, ...]
    targets: tuple[str, ...]


def read_pairs(directory: Path, name: str) -> PairSet:
    """The NLI set `name` (such as `dev` in data/tokens/dev).

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).nli)
    columns = read_table(directory / f"{name}.arrow")
    fields = ("premise", "hypothesis", "label", "reverse_label")
    return PairSet(name, *(columns[field] for field in fields))


def read_sts(directory: Path, name: str) -> StsSet:
    """The STS set `name`.

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).sts)
    columns = read_table(directory / f"{name}{STS_SUFFIX}.arrow")
    return StsSet(name, *(columns[field] for field in ("sentence1", "sentence2", "score")))


def read_text(directory: Path, name: str) -> TextSet:
    """The set of running text `name`.

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).text)
    columns = read_table(directory / f"{name}{TEXT_SUFFIX}.arrow")
    return TextSet(name, *(columns[field] for field in ("sentence", "document", "position")))


def read_task(directory: Path, name: str) -> TaskSet:
    """The transfer task `name`.

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).tasks)
    columns = read_table(directory / f"{name}{TASK_SUFFIX}.arrow")
    texts = next(fields for fields in TASK_TEXTS if fields[0] in columns)
    part = columns["part"]
    return TaskSet(name, tuple(columns[field] for field in texts), columns["class"], None if NO_PART in part else part)


def read_operations_set(directory: Path, name: str) -> OperationSet:
    """The set of operation rows `name`.

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).operations)
    columns = read_table(directory / f"{name}{OPERATIONS_SUFFIX}.arrow")
    return OperationSet(name, *(columns[field] for field in ("operation", "a", "b", "target")))


def read_targets(directory: Path, name: str) -> TargetSet:
    """The targets of training rows `name`.

    Raises:
        UserError: the store does not have this set, or differs from what stage tokenize wrote.
    """
    _require(directory, name, set_names(directory).targets)
    columns = read_table(directory / f"{name}{TARGETS_SUFFIX}.arrow")
    return TargetSet(name, *(columns[field] for field in ("operation", "sentence")))


# Row kind → the development set by which its objectives choose a model: its reader, its name, and the suffix of its file.
_DEV: dict[str, tuple[Callable[[Path, str], Any], str, str]] = {
    TRIPLETS: (read_pairs, DEV, ""),
    DOCUMENTS: (read_text, DEV_TEXT, TEXT_SUFFIX),
    OPERATION_ROWS: (read_operations_set, DEV_OPERATIONS, OPERATIONS_SUFFIX),
}


def read_dev(directory: Path, kind: str) -> Any:
    """The development set of the objectives over a kind of rows, from data/tokens/dev.

    Returns:
        a `PairSet` for triplets, a `TextSet` for documents, an `OperationSet` for operations.

    Raises:
        UserError: the store does not have the set, or differs from what stage tokenize wrote.
    """
    read, name, _ = _DEV[kind]
    return read(directory, name)


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
    read_rows(train, kind)
    read_dev(dev, kind)
    _, name, suffix = _DEV[kind]
    return rows_digest(train, kind), rows_digest(dev, f"{name}{suffix}")


def rows_digest(directory: Path, table: str) -> str:
    """Hex SHA-256 of the rows of a table and of their sentences: equal for stores with equal rows, whatever else they hold.

    Sentences count as token ids and in their order in the store; their numbers do not count.

    Args:
        table: the name of its file without `.arrow`, such as `triplets`, `dev` or `dev_text.text`.

    Raises:
        UserError: the store does not have the table, or differs from what stage tokenize wrote.
    """
    return _rows_digest_once(directory, table, digest(directory))


@cache
def _rows_digest_once(directory: Path, table: str, _: str) -> str:
    columns, store = read_table(directory / f"{table}.arrow"), open_store(directory)
    names = [name for name in columns if name in ROW_KINDS.get(table, SET_COLUMNS)]
    used = store.used_by(*(columns[name] for name in names))
    # Separate, so that the limits of shards do not count.
    sums = [hashlib.sha256() for _ in range(3)]
    for part in store.parts_of(used):
        for one, values in zip(sums, part, strict=True):
            one.update(np.ascontiguousarray(values, dtype="<i4").data)
    number = np.append(np.cumsum(used) - 1, MISSING)
    whole = hashlib.sha256(f"{store.pad_id} {[one.hexdigest() for one in sums]}".encode())
    for name, column in sorted(columns.items()):
        values = number[column].astype("<i4") if name in names else column
        whole.update(f"{name} {values.dtype.str} {len(values)} ".encode() + values.tobytes())
    return whole.hexdigest()


def set_names(directory: Path) -> SetNames:
    """The names of a store's sets."""
    manifest = read_manifest(directory)
    # Stores of earlier versions have no sets of the last four kinds.
    keys = ("nli_sets", "sts_sets", "text_sets", "task_sets", "operation_sets", "target_sets")
    return SetNames(*(tuple(manifest.get(key, ())) for key in keys))


def _require(directory: Path, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UserError(f"{directory}: has no set {name!r}; it has {', '.join(known) or 'none of this kind'}")
