"""Known file layouts, and the role of each column of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.readers.row_blocks import listed
from pipeline.utils.errors import UserError


class PairColumns(NamedTuple):
    """Names of the columns of a file of pairs."""

    premise: str
    hypothesis: str
    label: str | None
    reverse_label: str | None = None
    contradiction: str | None = None


class StsColumns(NamedTuple):
    """Names of the columns of a file of graded similarity."""

    sentence1: str
    sentence2: str
    score: str


PAIR_LAYOUTS = {
    "premise, hypothesis, label": PairColumns("premise", "hypothesis", "label", "entailment_ba"),
    "SNLI and MultiNLI, jsonl and txt": PairColumns("sentence1", "sentence2", "gold_label"),
    "SICK.txt": PairColumns("sentence_A", "sentence_B", "entailment_label", "entailment_BA"),
    "SICK_train, SICK_trial, SICK_test_annotated": PairColumns("sentence_A", "sentence_B", "entailment_judgment"),
    "SICK on the hub": PairColumns("sentence_A", "sentence_B", "label", "entailment_BA"),
    "SNLI as csv": PairColumns("sentence1", "sentence2", "similarity"),
    "GLUE": PairColumns("sentence1", "sentence2", "label"),
    "InferSent": PairColumns("s1", "s2", "labels"),
}
"""Known layouts of pairs, recognised by column names; `reverse_label` is used only if the file has that column."""

STS_LAYOUTS = {
    "sentence1, sentence2, score": StsColumns("sentence1", "sentence2", "score"),
    "SICK": StsColumns("sentence_A", "sentence_B", "relatedness_score"),
    "SICK as premise, hypothesis": StsColumns("premise", "hypothesis", "relatedness_score"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Columns to read in addition to those of the layout."""

    where: Sequence[str] = ()
    source: str | None = None
    """The column `source`, if the file has one."""

    def with_columns(self, columns: Sequence[str | None]) -> list[str]:
        """The names in `columns` and in this object, each once."""
        return list(dict.fromkeys(c for c in (*columns, *self.where, self.source) if c is not None))


def pair_columns(name: str, spec: FileSpec | HubSpec, available: Sequence[str], hint: str = "") -> PairColumns:
    """The columns of pairs: those named in `spec`; for the others, those of the one layout that fits.

    Args:
        name: name of the file, for messages.
        spec: the entry in params.yaml.
        available: all columns of the file.
        hint: added to the message if no layout fits.

    Raises:
        UserError: no layout or several layouts fit; a column is missing or occurs twice, or is named for two roles.
    """
    is_labelled = spec.contradiction is None and spec.fixed_label is None
    keys = ("premise", "hypothesis", "label")[: 3 if is_labelled else 2]
    given = [getattr(spec, key) for key in keys]
    layouts = [tuple(getattr(layout, key) for key in keys) for layout in PAIR_LAYOUTS.values()]
    names = _resolved(name, given, layouts, available, keys, hint)
    label, reverse = (names[2], spec.reverse_label or _reverse(names, available)) if is_labelled else (None, None)
    columns = PairColumns(names[0], names[1], label, reverse, spec.contradiction)
    require_columns(name, columns, available)
    _require_different(name, columns)
    return columns


def sts_columns(name: str, spec: StsSpec, available: Sequence[str], hint: str = "") -> StsColumns:
    """Like `pair_columns`, for graded similarity."""
    given = (spec.sentence1, spec.sentence2, spec.score)
    columns = StsColumns._make(_resolved(name, given, list(STS_LAYOUTS.values()), available, StsColumns._fields, hint))
    require_columns(name, columns, available)
    _require_different(name, columns)
    return columns


def more_columns(name: str, where: dict[str, str], available: Sequence[str]) -> Wanted:
    """The additional columns to read.

    Raises:
        UserError: a column of `where` is missing or occurs twice.
    """
    require_columns(name, tuple(where), available)
    return Wanted(where=tuple(where), source="source" if list(available).count("source") == 1 else None)


def _resolved(
    name: str,
    given: Sequence[str | None],
    layouts: Sequence[tuple[str, ...]],
    available: Sequence[str],
    keys: Sequence[str],
    hint: str,
) -> tuple[str, ...]:
    if all(column is not None for column in given):
        return tuple(column or "" for column in given)
    fits: dict[tuple[str, ...], None] = {}
    for layout in layouts:
        if all(column is not None or layout_column in available for column, layout_column in zip(given, layout, strict=True)):
            fits[tuple(column or layout_column for column, layout_column in zip(given, layout, strict=True))] = None
    if len(fits) == 1:
        return next(iter(fits))
    remedy = f"name {', '.join(keys)} in params.yaml"
    if not fits:
        without = "; without labels, contradiction or fixed_label" if "label" in keys else ""
        raise UserError(f"{name}: no known layout; it has the columns {listed(available)}: {remedy}{without}{hint}")
    options = " or ".join("(" + ", ".join(fit) + ")" for fit in fits)
    raise UserError(f"{name}: its columns can be read in several ways, {options}: {remedy}")


def _reverse(names: tuple[str, ...], available: Sequence[str]) -> str | None:
    """The reverse label of the layout whose columns are all in use; with swapped sentences it would have to be swapped, too."""
    for layout in PAIR_LAYOUTS.values():
        if layout[:3] == names and layout.reverse_label in available:
            return layout.reverse_label
    return None


def require_columns(name: str, columns: Sequence[str | None], available: Sequence[str]) -> None:
    """Check that a file has each of these columns, and only once; None stands for no column.

    Raises:
        UserError: it does not.
    """
    for column in columns:
        count = 1 if column is None else list(available).count(column)
        if count != 1:
            fault = "no column" if count == 0 else "more than one column"
            raise UserError(f"{name}: {fault} {column!r}; it has {listed(available)}: name another, or rename one in the file")


def _require_different(name: str, columns: Sequence[str | None]) -> None:
    used = [column for column in columns if column is not None]
    for column in used:
        if used.count(column) > 1:
            raise UserError(f"{name}: column {column!r} is used for two things; name a column for each in params.yaml")
