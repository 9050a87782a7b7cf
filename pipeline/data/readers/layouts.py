"""Known file layouts, and the role of each column of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.readers.row_blocks import listed
from pipeline.utils.errors import UserError

SOURCE = "source"
"""A column of text whose values are added to the `source` of the rows."""


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
    columns = PairColumns(names[0], names[1], None, None, spec.contradiction)
    if is_labelled:
        # Only of the layout whose columns are all in use: with swapped sentences, the reverse label would be swapped, too.
        back = (layout.reverse_label for layout in PAIR_LAYOUTS.values() if layout[:3] == names)
        reverse = spec.reverse_label or next((column for column in back if column in available), None)
        columns = columns._replace(label=names[2], reverse_label=reverse)
    _require_different(name, columns, available)
    return columns


def sts_columns(name: str, spec: StsSpec, available: Sequence[str], hint: str = "") -> StsColumns:
    """Like `pair_columns`, for graded similarity."""
    given = (spec.sentence1, spec.sentence2, spec.score)
    columns = StsColumns._make(_resolved(name, given, list(STS_LAYOUTS.values()), available, StsColumns._fields, hint))
    _require_different(name, columns, available)
    return columns


def _resolved(
    name: str,
    given: Sequence[str | None],
    layouts: Sequence[tuple[str, ...]],
    available: Sequence[str],
    keys: Sequence[str],
    hint: str,
) -> tuple[str, ...]:
    fits = dict.fromkeys(
        tuple(own or known for own, known in zip(given, layout, strict=True))
        for layout in layouts
        if all(own or known in available for own, known in zip(given, layout, strict=True))
    )
    if len(fits) == 1:
        return next(iter(fits))
    remedy = f"name {', '.join(keys)} in params.yaml"
    if not fits:
        without = "; without labels, contradiction or fixed_label" if "label" in keys else ""
        raise UserError(f"{name}: no known layout; it has the columns {listed(available)}: {remedy}{without}{hint}")
    options = " or ".join("(" + ", ".join(fit) + ")" for fit in fits)
    raise UserError(f"{name}: its columns can be read in several ways, {options}: {remedy}")


def require_columns(name: str, columns: Sequence[str | None], available: Sequence[str]) -> None:
    """Check that a file has each of these columns, and only once; None means no column.

    Raises:
        UserError: it does not.
    """
    for column in columns:
        count = 1 if column is None else list(available).count(column)
        if count != 1:
            fault = "no column" if count == 0 else "more than one column"
            raise UserError(f"{name}: {fault} {column!r}; it has {listed(available)}: name another, or rename one in the file")


def _require_different(name: str, columns: Sequence[str | None], available: Sequence[str]) -> None:
    require_columns(name, columns, available)
    used = [column for column in columns if column is not None]
    for column in used:
        if used.count(column) > 1:
            raise UserError(f"{name}: column {column!r} is used for two things; name a column for each in params.yaml")
