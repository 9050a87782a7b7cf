"""How a user's own file of pairs is probably meant: its separator, its columns, the meanings of its label names.

A guess is shown before it is used. What cannot be guessed is asked, or refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.config.data_params import FileSpec
from pipeline.config.types import label_key
from pipeline.data.readers.columns import KNOWN_LABELS, PAIR_LAYOUTS, pair_columns, require_columns, text_of
from pipeline.data.readers.formats import open_table
from pipeline.data.readers.opening import detect, head, locate
from pipeline.data.readers.row_blocks import listed, reading, shown
from pipeline.data.schema import LABELS, NO_LABEL
from pipeline.data.text_column import is_text
from pipeline.utils.errors import UserError

# Rows that the columns are guessed from; the most label names of a file.
_ROWS, _MOST_LABELS = 2000, 12
_SEPARATORS = (";", "|")
_LABEL_COLUMN = re.compile(r"label|gold|class|verdict|relation|entail|judg|stance", re.IGNORECASE)
_NAMES: Mapping[str, frozenset[str]] = {
    "premise": frozenset({layout.premise.lower() for layout in PAIR_LAYOUTS} | {"evidence", "context", "passage", "document"}),
    "hypothesis": frozenset({layout.hypothesis.lower() for layout in PAIR_LAYOUTS} | {"claim", "statement", "conclusion"}),
}
"""Names that say which sentence a column has."""
_MEANINGS: Mapping[str, str] = {
    **dict.fromkeys(
        ("entailed", "entails", "follows", "implies", "implied", "supports", "supported", "yes", "true"), "entailment"
    ),
    **dict.fromkeys(("unknown", "undetermined", "open", "maybe", "not enough info", "nei", "unrelated"), "neutral"),
    **dict.fromkeys(("contradicts", "contradictory", "contradicted", "refutes", "refuted", "wrong"), "contradiction"),
    **dict.fromkeys(("none", "n/a", "unlabelled"), "none"),
}
NO = ("no", "false", "not_entailment", "not-entailment", "not entailment", "non-entailment", "not entailed")
"""Names that say only that the hypothesis does not follow; where another name says that, too, the two share its two meanings."""
_TWO = "neutral: the hypothesis may be true or not; contradiction: it cannot be true"
Ask = Callable[[str, str], str | None]
"""(label name, what is known of it) → its meaning, by a person; None if nobody says it."""


class Understood(NamedTuple):
    """A file as it is read."""

    spec: FileSpec
    labels: Mapping[str, tuple[str, int]]
    """Label name in the file → its meaning and its rows."""


def understood(root: Path, given: FileSpec, ask: Ask) -> Understood:
    """A file of pairs as it is to be read.

    Args:
        root: the file's folder.
        given: what is known for sure.
        ask: asks about a label name that cannot be guessed.

    Raises:
        UserError: the file cannot be read, or what its columns or labels mean is unclear.
    """
    name = given.path
    with reading(name):
        start = head(locate(root, name), name)
        kind = detect(start, name, given.separator)
        if kind == ",":
            first = start.split(b"\n", 1)[0].decode(errors="replace")
            best = max((",", *_SEPARATORS), key=first.count)
            given = given.model_copy(update={"separator": given.separator or (best if best != "," else None)})
        elif kind == "\t" and given.quotes is None:
            given = _with_quotes(root, given)
        spec = _with_columns(root, given)
        if spec.label is None:
            return Understood(spec, {})
        counts = Counter[str]()
        for block in open_table(root, name, given).blocks([spec.label]):
            counts.update(value or "" for value in text_of(name, block, spec.label, or_numbers=True).to_pylist())
    return _with_labels(spec, counts, ask)


def _with_quotes(root: Path, given: FileSpec) -> FileSpec:
    """Says that quotes enclose fields if the file cannot be read without that, and can with it."""
    quoted = given.model_copy(update={"quotes": "csv"})
    return quoted if _readable(root, quoted) and not _readable(root, given) else given


def _readable(root: Path, spec: FileSpec) -> bool:
    try:
        table = open_table(root, spec.path, spec)
        for _ in table.blocks(table.columns):
            pass
    except UserError:
        return False
    return True


def _with_columns(root: Path, given: FileSpec) -> FileSpec:
    name, table = given.path, open_table(root, given.path, given)
    require_columns(name, [given.premise, given.hypothesis, given.label, given.contradiction], table.columns)
    try:
        columns = pair_columns(name, given, table)
    except UserError:
        labelled = given.contradiction is None and given.fixed_label is None and given.label is None
        named = {given.premise, given.hypothesis, given.label, given.contradiction}
        found = {column: _looks(root, given, column) for column in dict.fromkeys(table.columns) if column not in named}
        labels = [column for column, looks in found.items() if looks == "labels"]
        labels = [column for column in labels if _LABEL_COLUMN.search(column)] or labels
        roles = _roles(
            [column for column, looks in found.items() if looks == "sentences"],
            [role for role in ("premise", "hypothesis") if getattr(given, role) is None],
        )
        if roles is None or (labelled and len(labels) != 1):
            raise UserError(
                f"{name}: it is unclear which of its columns ({listed(table.columns)}) are what; name them with --premise, "
                "--hypothesis and --label (without labels: --contradiction COLUMN)"
            ) from None
        return given.model_copy(update=roles | ({"label": labels[0]} if labelled else {}))
    return given.model_copy(update={role: getattr(columns, role) for role in ("premise", "hypothesis", "label", "reverse_label")})


def _roles(columns: list[str], wanted: list[str]) -> dict[str, str] | None:
    """Role → column: by its name, and where that says nothing in the order of the file; None if that leaves it open."""
    named = {role: [column for column in columns if column.lower() in _NAMES[role]] for role in wanted}
    roles = {role: found[0] for role, found in named.items() if len(found) == 1}
    rest = [column for column in columns if column not in roles.values()]
    missing = [role for role in wanted if role not in roles]
    if not missing:
        return roles
    return roles | dict(zip(missing, rest, strict=True)) if len(rest) == len(missing) else None


def _looks(root: Path, given: FileSpec, column: str) -> str:
    """ "labels", "sentences", or "" for a column that is neither, or that cannot be read."""
    try:
        block = next(iter(open_table(root, given.path, given).blocks([column])), None)
    except UserError:
        return ""
    if block is None:
        raise UserError(f"{given.path}: has no rows; get or write it again")
    values = block.columns[column].slice(0, _ROWS)
    if not is_text(values.type) and not pa.types.is_integer(values.type) and not pa.types.is_boolean(values.type):
        return ""
    texts = [str(value) for value in values.to_pylist() if value not in (None, "")]
    words = sum(len(text.split()) for text in texts) / max(1, len(texts))
    different = len({*texts})
    if (
        words < 4
        and (different > 1 or (texts and _LABEL_COLUMN.search(column)))
        and different <= min(_MOST_LABELS, len(texts) / 2)
    ):
        return "labels"
    # Scripts without spaces have long words.
    return "sentences" if words >= 2 or sum(map(len, texts)) / max(1, len(texts)) >= 12 else ""


def _with_labels(spec: FileSpec, counts: Counter[str], ask: Ask) -> Understood:
    if len(counts) > _MOST_LABELS:
        raise UserError(
            f"{spec.path}: column {spec.label!r} has {len(counts):,} different values; name that of the labels (--label)"
        )
    known: dict[str, str] = {key: "none" if code == NO_LABEL else LABELS[code] for key, code in KNOWN_LABELS.items()}
    given: dict[str, str] = {label_key(name): meaning for name, meaning in spec.labels.items()}
    keys = {label_key(label): label for label in counts}
    every: dict[str, str] = {**_MEANINGS, **known, **given}
    meanings: dict[str, str] = {key: every[key] for key in keys if key in every}
    for key, label in keys.items():
        others = {*meanings.values()}
        if key in NO and key not in meanings and ("contradiction" in others) != ("neutral" in others):
            meanings[key] = "neutral" if "contradiction" in others else "contradiction"
        elif key not in meanings:
            about = f"{counts[label]:,} rows" + (f"; {_TWO}" if key in NO else "")
            if (meaning := ask(label, about)) is None:
                raise UserError(
                    f"{spec.path}: column {spec.label!r}: it is unclear what {shown(label)} means ({about}); say it with "
                    f"--labels '{label}=MEANING', where MEANING is {', '.join(LABELS)} or none"
                )
            meanings[key] = meaning
    own = {label: meanings[key] for key, label in keys.items() if key not in known or key in given}
    found = {label: (meanings[label_key(label)], number) for label, number in counts.most_common()}
    return Understood(spec.model_copy(update={"labels": own}), found)
