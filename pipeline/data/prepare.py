"""Stage prepare: sources → cleaned pairs, triplets and reversed pairs, and an account of every row (`prepare.json`)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data import cleaning
from pipeline.data.cleaning import IdPairs, Ids
from pipeline.data.files import all_or_nothing, sha256_tree, write_parquet
from pipeline.data.readers import PairRows, StsRows, read_generated, read_pairs, read_sts
from pipeline.data.schema import (
    CONTRADICTION,
    ENTAILMENT,
    LABELS,
    NEUTRAL,
    NO_LABEL,
    PAIRS,
    PAIRS_BOTH_WAYS,
    REVERSED,
    STS,
    STS_SUFFIX,
    TRIPLETS,
)
from pipeline.data.triplets import match_contradictions
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.params import DataParams

OUTPUTS = ("train", "dev", "tests", "prepare.json")
"""What the stage writes under its output folder; the account comes last, as the seal."""

RESERVED = ("sentences", "triplets")
"""Names that stage tokenize gives to files of its own, beside those of the sets."""

Report = dict[str, Any]
"""Counts as they stand in prepare.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everything that is read."""

    train: Sequence[PairRows]
    dev: PairRows
    tests: Mapping[str, PairRows]
    sts: Mapping[str, StsRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class NliSet:
    """The kept rows of one set, with their ids."""

    table: pa.Table
    """Columns of PAIRS, and `reverse_label` where the source has it."""
    label: npt.NDArray[np.int8]
    ids: IdPairs


def prepare(data: DataParams, out: Path) -> Report:
    """Read, clean and write everything under `out` (see `OUTPUTS`); the same input and parameters give the same bytes.

    Returns:
        The content of prepare.json.

    Raises:
        UserError: an input is wrong, or too little is left to train or score on; `out` is then as it was.
    """
    sources = read_sources(data)
    with all_or_nothing(out, OUTPUTS) as work:
        for name in ("train", "dev", "tests"):
            (work / name).mkdir()
        report = _clean_and_write(data, sources, work)
        report["source"] = data.source
        report["sha256"] = sha256_tree(work, "*.parquet")
        write_json(work / "prepare.json", report)
    return report


def read_sources(data: DataParams) -> Sources:
    """Rows of every set that `data` names, as they are in the source."""
    if data.source == "generated":
        return Sources(
            train=[read_generated("train", data.generated.train, data.seed)],
            dev=read_generated("dev", data.generated.dev, data.seed),
            tests={"generated_test": read_generated("test", data.generated.test, data.seed)},
            sts={},
        )
    files, root = data.files, Path(data.root)
    if files.dev is None:
        raise UserError("data.files.dev: names no file; name the development set when data.source is files")
    paths = [posixpath.normpath(spec.path) for spec in files.train]
    for path in paths:
        if paths.count(path) > 1:
            raise UserError(f"data.files.train: names {path} twice; remove one")
    for name in (*files.tests, *files.sts):
        if name in RESERVED:
            raise UserError(f"data.files: a test set cannot be called {name!r}; rename it")
    return Sources(
        train=[read_pairs(root, spec) for spec in files.train],
        dev=read_pairs(root, files.dev),
        tests={name: read_pairs(root, spec) for name, spec in sorted(files.tests.items())},
        sts={name: read_sts(root, spec) for name, spec in sorted(files.sts.items())},
    )


def _clean_and_write(data: DataParams, sources: Sources, work: Path) -> Report:
    ids, sts_ids, sentences = _all_ids(sources)
    held_out = {"dev": sources.dev, **sources.tests}
    sets: dict[str, NliSet] = {}
    reports: dict[str, Report] = {}
    for name, rows in held_out.items():
        sets[name], reports[name] = _clean_held_out(name, rows, ids[name], data, sentences)
    entailed = sets["dev"].label == ENTAILMENT
    if entailed.all() or not entailed.any():
        raise UserError(
            f"{sources.dev.name}: development has {_labels_text(sets['dev'].label)} rows only; "
            "it needs entailment and other rows to choose a threshold"
        )
    train, train_report = _clean_train(sources.train, ids["train"], list(sets.values()), sentences)

    in_train = np.zeros(sentences, dtype=np.bool_)
    in_train[train.ids.premise] = in_train[train.ids.hypothesis] = True
    for name, nli in sets.items():
        reports[name] |= _overlap(in_train, nli.ids)
        path = work / "dev" / "dev.parquet" if name == "dev" else work / "tests" / f"{name}.parquet"
        write_parquet(nli.table, _pairs_schema(nli.table), path)
    sts_reports: dict[str, Report] = {}
    for name, rows in sources.sts.items():
        table, kept, sts_reports[name] = _clean_sts(name, rows)
        sts_reports[name] |= _overlap(in_train, sts_ids[name][kept])
        write_parquet(table, STS, work / "tests" / f"{name}{STS_SUFFIX}.parquet")
    train_report |= _write_train(train, data, work / "train")
    return {
        "train": train_report,
        "dev": reports.pop("dev"),
        "tests": reports,
        "sts": sts_reports,
    }


def _all_ids(sources: Sources) -> tuple[dict[str, IdPairs], dict[str, IdPairs], int]:
    """Ids of every row of every NLI set (train as one) and STS set, and the number of sentences."""
    columns: list[pa.ChunkedArray] = []
    for rows in (*sources.train, sources.dev, *sources.tests.values()):
        columns += [rows.premise, rows.hypothesis]
    for rows in sources.sts.values():
        columns += [rows.sentence1, rows.sentence2]
    ids, sentences = cleaning.sentence_ids(columns)
    pairs = [IdPairs(ids[i], ids[i + 1]) for i in range(0, len(ids), 2)]
    train, rest = pairs[: len(sources.train)], iter(pairs[len(sources.train) :])
    joined = IdPairs(np.concatenate([p.premise for p in train]), np.concatenate([p.hypothesis for p in train]))
    nli = {"train": joined} | {name: next(rest) for name in ("dev", *sources.tests)}
    return nli, {name: next(rest) for name in sources.sts}, sentences


def _clean_held_out(name: str, rows: PairRows, ids: IdPairs, data: DataParams, sentences: int) -> tuple[NliSet, Report]:
    unlabelled = rows.label == NO_LABEL
    if data.unlabelled == "non-entailment":
        rows = replace(rows, label=np.where(unlabelled, NEUTRAL, rows.label).astype(np.int8))
    empty = cleaning.blank(rows.premise, rows.hypothesis)
    reason = cleaning.held_out_reasons(rows.label, empty)
    kept = reason == cleaning.KEPT
    dropped = cleaning.count(reason, cleaning.HELD_OUT_REASONS)
    _require_rows(rows.name, f"set {name!r}", kept, dropped)
    nli = NliSet(table=_pairs_table(rows).filter(pa.array(kept)), label=rows.label[kept], ids=ids[kept])
    key = nli.ids.key(sentences)
    return nli, {
        "file": rows.name,
        **_rows(reason, dropped),
        "unlabelled_as_neutral": int((kept & unlabelled).sum()),
        "kept_duplicate": int(cleaning.repeated(key, nli.label).sum()),
        "kept_contradictory": int(cleaning.contradictory(key, nli.label).sum()),
        "labels": _label_counts(nli.label),
    }


def _clean_train(files: Sequence[PairRows], ids: IdPairs, held_out: Sequence[NliSet], sentences: int) -> tuple[NliSet, Report]:
    label = np.concatenate([rows.label for rows in files])
    empty = np.concatenate([cleaning.blank(rows.premise, rows.hypothesis) for rows in files])
    reason = cleaning.train_reasons(ids, label, empty, [other.ids for other in held_out], sentences)
    kept = reason == cleaning.KEPT
    dropped = cleaning.count(reason)
    _require_rows(", ".join(rows.name for rows in files), "training", kept, dropped)
    # `default`: a file that lacks reverse_label gets nulls beside one that has it.
    table = pa.concat_tables([_pairs_table(rows) for rows in files], promote_options="default").filter(pa.array(kept))
    parts = np.split(reason, np.cumsum([len(rows) for rows in files])[:-1])
    return NliSet(table=table, label=label[kept], ids=ids[kept]), {
        "files": {rows.name: _rows(part, cleaning.count(part)) for rows, part in zip(files, parts, strict=True)},
        **_rows(reason, dropped),
        "labels": _label_counts(label[kept]),
    }


def _clean_sts(name: str, rows: StsRows) -> tuple[pa.Table, npt.NDArray[np.bool_], Report]:
    empty = cleaning.blank(rows.sentence1, rows.sentence2)
    label = np.where(np.isfinite(rows.score), 0, NO_LABEL).astype(np.int8)
    reason = cleaning.held_out_reasons(label, empty)
    kept = reason == cleaning.KEPT
    dropped = cleaning.count(reason, cleaning.HELD_OUT_REASONS)
    _require_rows(rows.name, f"set {name!r}", kept, dropped)
    columns = [rows.sentence1, rows.sentence2, rows.score, rows.source]
    table = pa.table(dict(zip(STS.names, columns, strict=True))).filter(pa.array(kept))
    return table, kept, {"file": rows.name, **_rows(reason, dropped)}


def _write_train(train: NliSet, data: DataParams, folder: Path) -> Report:
    entailment, contradiction = match_contradictions(train.ids.premise, train.label, data.contradictions, data.seed)
    if not len(entailment):
        raise UserError(
            f"training has {_labels_text(train.label)} rows only; "
            "triplets are made of entailment rows: add a file with some to data.files.train"
        )
    found = contradiction >= 0
    entailed = train.table.take(entailment)
    hypotheses = train.table["hypothesis"]
    triplets = pa.table(
        {
            "premise": entailed["premise"],
            "entailment": entailed["hypothesis"],
            # Taking at a null gives a null.
            "contradiction": hypotheses.take(pa.array(contradiction, mask=~found)),
            "source": entailed["source"],
        }
    )
    reverse = pa.table({"premise": entailed["hypothesis"], "hypothesis": entailed["premise"], "source": entailed["source"]})
    write_parquet(train.table, _pairs_schema(train.table), folder / "pairs.parquet")
    write_parquet(triplets, TRIPLETS, folder / "triplets.parquet")
    write_parquet(reverse, REVERSED, folder / "reversed.parquet")
    entailing = len(np.unique(train.ids.premise[entailment]))
    return {
        "entailment_pairs": len(entailment),
        "triplets": len(entailment),
        "triplets_with_contradiction": int(found.sum()),
        "unique_premises": len(np.unique(train.ids.premise)),
        "unique_premises_with_entailment": entailing,
        "entailments_per_premise_mean": round(len(entailment) / entailing, 6),
        "distinct_contradictions_used": len(np.unique(contradiction[found])),
        "contradiction_pairs": int((train.label == CONTRADICTION).sum()),
    }


def _pairs_table(rows: PairRows) -> pa.Table:
    columns = {
        "premise": rows.premise,
        "hypothesis": rows.hypothesis,
        "label": _label_names(rows.label),
        "source": rows.source,
    }
    if rows.reverse_label is not None:
        columns["reverse_label"] = _label_names(rows.reverse_label)
    return pa.table(columns)


def _pairs_schema(table: pa.Table) -> pa.Schema:
    return PAIRS_BOTH_WAYS if "reverse_label" in table.column_names else PAIRS


def _label_names(label: npt.NDArray[np.int8]) -> pa.Array:
    """(n,) label names, null for `NO_LABEL`."""
    return pa.array(LABELS, pa.string()).take(pa.array(label, mask=label == NO_LABEL))


def _label_counts(label: npt.NDArray[np.int8]) -> dict[str, int]:
    return {name: int((label == code).sum()) for code, name in enumerate(LABELS)}


def _labels_text(label: npt.NDArray[np.int8]) -> str:
    return " and ".join(LABELS[code] for code in np.unique(label))


def _rows(reason: npt.NDArray[np.int8], dropped: dict[str, int]) -> Report:
    return {"rows_in": len(reason), "rows_out": int((reason == cleaning.KEPT).sum()), "dropped": dropped}


def _overlap(in_train: npt.NDArray[np.bool_], ids: IdPairs) -> Report:
    """Sentences of a set, and how many of them stand in the kept training rows too (on either side)."""
    unique: Ids = np.unique(np.concatenate([ids.premise, ids.hypothesis]))
    return {"sentences": len(unique), "sentences_in_train": int(in_train[unique].sum())}


def _require_rows(name: str, role: str, kept: npt.NDArray[np.bool_], dropped: dict[str, int]) -> None:
    if kept.any():
        return
    why = ", ".join(f"{reason} {number}" for reason, number in dropped.items() if number) or "the file is empty"
    raise UserError(f"{name}: no row is left of {len(kept)} for {role} ({why}); check the columns and labels of the file")
