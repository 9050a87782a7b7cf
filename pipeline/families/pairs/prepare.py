"""Pairs in stage prepare: sources → cleaned pairs, triplets and reversed pairs.

All text is streamed, twice, in batches. Checks that need all rows at once are in the `Ledger`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams
from pipeline.config.params import EvaluateParams, Params
from pipeline.data import cleaning, schema
from pipeline.data.dedup import Ledger
from pipeline.data.generated.everyday import everyday_sentences
from pipeline.data.scratch import database
from pipeline.data.split import part_of
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.families.pairs.minimal_pairs import MOST_SENTENCES, minimal_pairs
from pipeline.families.pairs.params import FAMILY
from pipeline.families.pairs.partitions import decided_on_nodes
from pipeline.families.pairs.profile import profile
from pipeline.families.pairs.sources import Sources, read_sources
from pipeline.families.pairs.training_rows import (
    Decided,
    TextFile,
    kept_rows,
    with_codes,
    with_reverse,
    without_own_reasons,
)
from pipeline.families.pairs.warn import warnings
from pipeline.families.prepare import Report, counted, dropped
from pipeline.storage.exchange import Spread
from pipeline.utils.errors import UserError

__all__ = ["contents", "lines", "prepare", "profile", "warnings"]

# Sentences of our own, for the kinds of minimal pairs that a project's sentences give too few of.
_EVERYDAY = 20_000


def prepare(data: DataParams, work: Path, evaluate: EvaluateParams | None, spread: Spread | None = None) -> Report:
    """Write the sets of pairs, triplets and reversed pairs into `work`; returns train, dev, promotion, tests, sts.

    Args:
        evaluate: decides how the hypothesis-only baseline is measured; None: it is not.
        spread: a cluster that reads and decides on the training files; None: this process does.

    Raises:
        UserError: an input is wrong, or too few rows are left to train or score on.
    """
    sources, scratch = read_sources(data), work.with_name("scratch")
    with database(scratch) as connection:
        report = _clean_and_write(data, sources, Ledger(connection), work, scratch, spread)
    if evaluate is not None and FAMILY.has(data):
        from pipeline.families.pairs.baselines import hypothesis_only_of

        tests, step = sorted(report["tests"]), evaluate.threshold_step
        report["hypothesis_only"] = hypothesis_only_of(work, tests, step, evaluate.entailment_if)
    return report


def check_trainable(report: Report, params: Params) -> None:
    """Check that `train.triplets` leaves triplets."""
    train = report["train"]
    if params.train.triplets == "with-contradiction" and train["triplets"] and not train["triplets_with_contradiction"]:
        raise UserError(
            "params.yaml: train.triplets: with-contradiction leaves nothing to train on: no premise of an entailment pair has a "
            "contradiction (as where data have two classes only); write all"
        )


def contents(data: DataParams) -> list[Iterable[Any]]:
    """The rows of all sets, as `prepare` reads them."""
    pairs = read_sources(data)
    return [*pairs.train, pairs.dev or (), *pairs.tests.values(), *pairs.sts.values()]


def lines(report: Report) -> Iterator[str]:
    """What stage prepare prints of its counts."""
    if (train := report.get("train")) is not None:
        yield counted("train", train)
        if kinds := train.get("minimal_pairs"):
            yield f"  {sum(kinds.values()):,} minimal pairs: {', '.join(f'{name} {number:,}' for name, number in kinds.items())}"
        yield f"  {train['triplets']:,} triplets, {train['triplets_with_contradiction']:,} of them with a contradiction"
    parts = {name: report[name] for name in (schema.DEV, schema.PROMOTION) if name in report}
    for name, rows in {**parts, **report["tests"], **report["sts"]}.items():
        yield counted(name, rows)


def _clean_and_write(
    data: DataParams, sources: Sources, ledger: Ledger, work: Path, scratch: Path, spread: Spread | None
) -> Report:
    parts = {} if sources.dev is None else _development(sources.dev, data, ledger, scratch)
    tests: dict[str, Report] = {}
    for name, rows in sources.tests.items():
        tests[name] = report = _held_out(name, rows, data, ledger, scratch / f"{name}.parquet")
        _require_rows(rows.name, f"set {name!r}", report)
        report |= ledger.in_development(name)
        if report["pairs_in_dev"] == report["rows_out"]:
            raise UserError(f"{rows.name}: every pair of test set {name!r} is also in the development set; remove one of the two")
    for name in parts | tests:
        path = work / (name if name in parts else "tests") / f"{name}.parquet"
        back = ledger.entailed_back(name)
        # Second pass.
        with ParquetFile(path, schema.PAIRS) as file, open_parquet(scratch / path.name) as source:
            for batch in source.iter_batches(schema.BATCH_ROWS):
                file.write(_named(with_reverse(batch, back[: batch.num_rows])))
                back = back[batch.num_rows :]
    sts = {name: _graded(name, rows, ledger, work / "tests") for name, rows in sources.sts.items()}
    graded = {name + schema.STS_SUFFIX: report for name, report in sts.items()}
    for name, report in {**{name: parts[name] for name in parts if name == schema.PROMOTION}, **graded}.items():
        report |= ledger.in_development(name)
    train: Report = {}
    if sources.train:
        train["train"] = _train(sources.train, data, ledger, work / "train", scratch / "train.text", spread)
    else:
        ledger.decide()
    for name, report in {**parts, **tests, **graded}.items():
        report |= ledger.overlap(name)
    return {**train, **parts, "tests": tests, "sts": sts}


def _development(rows: schema.RawRows, data: DataParams, ledger: Ledger, scratch: Path) -> dict[str, Report]:
    """`_held_out` for the two parts of the development set (`pipeline.data.split`).

    Raises:
        UserError: a part does not have both classes.
    """
    reports = {
        name: _held_out(name, part_of(rows, name, data.promotion_share), data, ledger, scratch / f"{name}.parquet")
        for name in (schema.DEV, schema.PROMOTION)
    }
    for name, report in reports.items():
        if report["labels"][schema.LABELS[schema.ENTAILMENT]] in (0, report["rows_out"]):
            every = sum(one["rows_out"] for one in reports.values())
            raise UserError(
                f"{rows.name}: of its {every:,} pairs the {name} part of the development set has {report['rows_out']:,}, "
                f"{_names_of(report['labels']) or 'none'} only (dropped: {dropped(report['dropped'])}); it needs entailment and "
                "other rows: check the labels, add pairs of other premises, or change data.promotion_share"
            )
    return reports


def _held_out(name: str, rows: schema.RawRows, data: DataParams, ledger: Ledger, text: Path) -> Report:
    """First pass over a development or test set: add its kept rows to the ledger and to `text`."""
    counts, labels, as_neutral = np.zeros(len(cleaning.REASONS) + 1, np.int64), np.zeros(len(schema.LABELS), np.int64), 0
    with pq.ParquetWriter(text, schema.RAW_PAIRS, compression="lz4", use_dictionary=False) as writer:
        for batch in rows:
            label = batch["label"].to_numpy()
            unlabelled = label == schema.NO_LABEL
            if data.unlabelled == "non-entailment":
                # From here on they are neutral rows: hard pairs, too, are those where another label than neutral is likelier.
                label = np.where(unlabelled, schema.NEUTRAL, label).astype(np.int8)
                batch = with_codes(batch, "label", label)
            reason = cleaning.own_reasons(batch, "premise", "hypothesis", label != schema.NO_LABEL)
            kept = reason == cleaning.KEPT
            counts += cleaning.tally(reason)
            labels += np.bincount(label[kept], minlength=len(schema.LABELS))
            as_neutral += int((kept & unlabelled).sum())
            batch = batch.filter(pa.array(kept))
            ledger.add_held_out(name, batch)
            writer.write_batch(batch)
    return {
        "file": rows.name,
        **_rows(counts, cleaning.by_reason(counts, cleaning.HELD_OUT_REASONS)),
        "unlabelled_as_neutral": as_neutral,
        **ledger.repeats(name),
        "labels": dict(zip(schema.LABELS, labels.tolist(), strict=True)),
    }


def _graded(name: str, rows: schema.RawRows, ledger: Ledger, folder: Path) -> Report:
    """Like `_held_out`, for a set of graded similarity."""
    counts = np.zeros(len(cleaning.REASONS) + 1, np.int64)
    with ParquetFile(folder / f"{name}{schema.STS_SUFFIX}.parquet", schema.STS) as file:
        for batch in rows:
            scored = np.isfinite(batch["score"].to_numpy())
            reason = cleaning.own_reasons(batch, "sentence1", "sentence2", scored)
            counts += cleaning.tally(reason)
            batch = batch.filter(pa.array(reason == cleaning.KEPT))
            ledger.add_held_out(name + schema.STS_SUFFIX, batch, graded=True)
            file.write(batch)
    report = {"file": rows.name, **_rows(counts, cleaning.by_reason(counts, cleaning.HELD_OUT_REASONS))}
    _require_rows(rows.name, f"set {name!r}", report)
    return report


def _train(
    sources: Sequence[schema.RawRows], data: DataParams, ledger: Ledger, folder: Path, text: Path, spread: Spread | None
) -> Report:
    """Both passes over the training rows, here or on a cluster: decide on all of them, then write those that are kept."""
    decided = _decided_here(sources, ledger, text) if spread is None else decided_on_nodes(data, ledger, text, spread)
    counts: dict[str, npt.NDArray[np.int64]] = {}
    for rows, tally in zip(sources, decided.tallies, strict=True):
        # A file may occur twice, for different parts of it.
        counts[rows.name] = counts.get(rows.name, 0) + tally
    total = np.sum(list(counts.values()), axis=0)
    whole = _rows(total, cleaning.by_reason(total))
    _require_rows(", ".join(counts), "training", whole)
    if not decided.labels[schema.LABELS[schema.ENTAILMENT]]:
        raise UserError(
            f"training has only {_names_of(decided.labels)} rows; "
            "triplets are made of entailment rows: add a file with some to data.files.train"
        )
    two_way = _write_train(decided.kept(), folder)
    minimal = _write_minimal(data, ledger, folder) if data.minimal_pairs else {}
    numbers = decided.counts()
    return {
        "files": {name: _rows(part, cleaning.by_reason(part)) for name, part in counts.items()},
        **whole,
        "labels": decided.labels,
        **minimal,
        "entailment_pairs": numbers["triplets"],
        "two_way": two_way,
        **numbers,
        "entailments_per_premise_mean": round(numbers["triplets"] / numbers["unique_premises_with_entailment"], 6),
    }


def _decided_here(sources: Sequence[schema.RawRows], ledger: Ledger, text: Path) -> Decided:
    dropped_counts: list[npt.NDArray[np.int64]] = []
    ends: list[int] = []
    with TextFile(text) as writer:
        for rows in sources:
            counts = np.zeros(len(cleaning.REASONS) + 1, np.int64)
            for whole in without_own_reasons(rows, counts):
                ledger.add_train(whole)
                writer.write(whole)
            dropped_counts.append(counts)
            ends.append(len(ledger))
    reason = ledger.decide()
    parts = np.split(reason, ends[:-1])
    return Decided(
        tallies=[alone + cleaning.tally(part) for alone, part in zip(dropped_counts, parts, strict=True)],
        labels=ledger.labels(),
        counts=ledger.train_counts,
        kept=lambda: kept_rows(text, reason, ledger),
    )


def _write_train(rows: Iterable[pa.RecordBatch | pa.Table], folder: Path) -> int:
    """Write pairs, triplets and reversed pairs of the kept rows; returns the number of pairs known to hold both ways."""
    total = 0
    with (
        ParquetFile(folder / "pairs.parquet", schema.PAIRS) as pairs,
        ParquetFile(folder / "triplets.parquet", schema.TRIPLETS) as triplets,
        ParquetFile(folder / "reversed.parquet", schema.REVERSED) as reverse,
    ):
        for batch in rows:
            pairs.write(_named(batch))
            entailed = batch.filter(pa.array(batch["label"].to_numpy() == schema.ENTAILMENT))
            two_way = entailed["reverse_label"].to_numpy() == schema.ENTAILMENT
            total += int(two_way.sum())
            premise, entailment, origin = entailed["premise"], entailed["hypothesis"], entailed["source"]
            # A pair that holds both ways is not an example of one that does not hold.
            reverse.write(pa.table([entailment, premise, origin], schema=schema.REVERSED).filter(pa.array(~two_way)))
            columns = [
                premise,
                entailment,
                entailed["contradiction"],
                origin,
                entailed["neutral"],
                pa.array(two_way.astype(np.int8)),
            ]
            triplets.write(pa.table(columns, schema=schema.TRIPLETS))
    return total


def _write_minimal(data: DataParams, ledger: Ledger, folder: Path) -> Report:
    """Write minimal pairs of the training sentences; returns their number by kind, and that of those dropped as leaked."""
    sentences = ledger.sampled(folder / f"{schema.TRAIN_PAIRS}.parquet", data.seed, MOST_SENTENCES)
    # Few corpora have many sentences in which subject and object can change places.
    everyday = list(islice(everyday_sentences("train", data.seed), _EVERYDAY))
    pairs = minimal_pairs(sentences, data.minimal_pairs, data.seed, further=everyday, twice=True)
    table = pa.Table.from_pylist([{**pair._asdict(), "source": pair.kind} for pair in pairs], schema=schema.PAIRS)
    leaked = ledger.leaked(table)
    table = table.filter(pa.array(~leaked))
    with ParquetFile(folder / f"{schema.MINIMAL_PAIRS}.parquet", schema.PAIRS) as file:
        file.write(table)
    kinds = Counter(table["source"].to_pylist())
    return {"minimal_pairs": dict(sorted(kinds.items())), "minimal_pairs_leaked": int(leaked.sum())}


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with label codes replaced by label names (null for `NO_LABEL`)."""
    for column in ("label", "reverse_label"):
        codes = batch[column].to_numpy()
        names = pa.array(schema.LABELS, pa.string()).take(pa.array(codes, mask=codes == schema.NO_LABEL))
        batch = batch.set_column(batch.schema.get_field_index(column), column, names)
    return batch


def _rows(counts: npt.NDArray[np.int64], dropped: dict[str, int]) -> Report:
    return {"rows_in": int(counts.sum()), "rows_out": int(counts[cleaning.KEPT]), "dropped": dropped}


def _names_of(labels: Mapping[str, int]) -> str:
    return " and ".join(name for name, number in labels.items() if number)


def _require_rows(name: str, role: str, report: Report) -> None:
    if report["rows_out"]:
        return
    why = dropped(report["dropped"], "the file is empty")
    raise UserError(f"{name}: no row is left of {report['rows_in']} for {role} ({why}); check the columns and labels of the file")
