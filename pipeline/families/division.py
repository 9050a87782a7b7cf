"""The sets of running text and of operation rows: where they come from, and which set each row goes to.

A row is a document, or an operation row. All rows are read once, into a scratch file; then each one goes to a set, or is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config.data_params import DataParams
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.schema import BATCH_ROWS, DEV, PROMOTION
from pipeline.data.table_io import ROW_GROUP, ParquetFile, open_parquet
from pipeline.data.token_store import as_int32
from pipeline.families.family import dev_sets, promotion_sets

Spec = TypeVar("Spec")
TRAIN = "train"
"""The training set of a family, among its counts."""
DEV_SHARE = 0.1
"""Share of the training rows that become the development set unless section `data` names one."""
DUPLICATE, LEAKED, LEFT_OUT = -1, -2, -3
"""Reasons why a row is in no set: it repeats an earlier one, it is connected to a row of another set, or it does not count."""


class Source(NamedTuple):
    """A set of documents, or of operation rows."""

    name: str
    """In messages."""
    rows: Callable[[], Iterable[Any]]
    """Its documents; or for each row of the input its file, and the operation rows that it gives."""
    share: float = 1.0
    """Share of the components of operation rows that are taken."""


def sources_of(
    data: DataParams,
    kind: str,
    number: int,
    named: tuple[Sequence[Spec], Spec | None, Mapping[str, Spec]],
    generated: Callable[[Split, int], Source],
    files: Callable[[Sequence[Spec]], Source],
) -> dict[str, Source]:
    """The sets that section `data` names, training first: set → source; empty if it names none.

    Args:
        kind: "text" or "operations".
        number: generated rows to train on; the development and the test set have a tenth as many.
        named: what `data.files` names to train on, as development set and as test sets.
        generated: gives the source of a set from its part of the grammar and its size.
        files: gives the source of a set from its files.
    """
    if data.source == "generated" and number:
        tenth = -(-number // 10)
        sets = {TRAIN: generated("train", number), f"{DEV}_{kind}": generated("dev", tenth)}
        return sets | {f"{GENERATED}_{kind}": generated("test", tenth)}
    if data.source != "files":
        return {}
    train, dev, tests = named
    specs = {TRAIN: train, f"{DEV}_{kind}": [] if dev is None else [dev]} | {name: [spec] for name, spec in sorted(tests.items())}
    return {name: files(some) for name, some in specs.items() if some}


def set_file(work: Path, name: str, train: str, suffix: str) -> Path:
    """The file of a set in the stage's folder; `train` is the name of that of the training set."""
    if name == TRAIN:
        return work / "train" / f"{train}.parquet"
    folder = DEV if name in dev_sets() else PROMOTION if name in promotion_sets() else "tests"
    return work / folder / f"{name}{suffix}.parquet"


def write_scratch(path: Path, schema: pa.Schema, rows: Iterator[tuple[Any, ...]]) -> None:
    """Write rows to a new file; the first column, `document`, counts documents, or operation rows, from 0."""
    with pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False) as writer:
        while chunk := list(islice(rows, BATCH_ROWS)):
            writer.write_table(pa.table(dict(zip(schema.names, zip(*chunk, strict=True), strict=True)), schema=schema))


def places(
    given: Sequence[str],
    kind: str,
    part: NDArray[np.int16],
    key: NDArray[np.uint64],
    component: NDArray[np.intp],
    draws: tuple[NDArray[np.float64], NDArray[np.float64]],
    promotion_share: float,
    *,
    left_out: NDArray[np.bool_],
    repeatable: NDArray[np.bool_],
) -> tuple[list[str], NDArray[np.int16]]:
    """The set of each of n rows.

    A training row of a component with a row of another set is dropped, and so is a row that repeats an earlier one of its set.
    Without a given development set, a share of the training rows becomes one; a share of that is the promotion part.

    Args:
        given: the sets that the rows come from.
        kind: "text" or "operations".
        part: (n,) position in `given`.
        key: (n,) hash of the row.
        component: (n,) number of the component of connected rows.
        draws: (n,) each, in [0, 1), the same for all rows of a component: a row is in the development set, or of that in the
            promotion part, if its number is below the share.
        left_out: (n,) rows that do not count.
        repeatable: (n,) rows that may repeat an earlier one.

    Returns:
        The names of the sets that are written, and (n,) each row's position among them, or the reason why it is in none.
    """
    names, place = [*given], part.copy()
    if TRAIN in given:
        names += [name for name in (f"{DEV}_{kind}", f"{PROMOTION}_{kind}") if name not in given]
        dev, trained = names.index(f"{DEV}_{kind}"), part == names.index(TRAIN)
        held = np.zeros(int(component.max(initial=-1)) + 1, np.bool_)
        held[component[~trained & ~left_out]] = True
        if names[dev] not in given:
            place[trained & (draws[0] < DEV_SHARE)] = dev
        place[(place == dev) & (draws[1] < promotion_share)] = names.index(f"{PROMOTION}_{kind}")
        place[trained & held[component]] = LEAKED
    rows = np.flatnonzero(repeatable & ~left_out)
    rows = rows[np.lexsort((key[rows], part[rows]))]
    same = (np.diff(part[rows]) == 0) & (key[rows][1:] == key[rows][:-1])
    place[rows[1:][same]] = DUPLICATE
    place[left_out] = LEFT_OUT
    return names, place


def placed(scratch: Path, place: NDArray[np.int16]) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int16]]]:
    """The rows of a scratch file, in batches, with the place of each one; column `document` becomes their number in their set.

    Args:
        place: (n,) place of each document, which may have several rows.
    """
    number = np.zeros(len(place), np.int32)
    for k in np.unique(place).tolist():
        number[place == k] = as_int32(np.arange((place == k).sum()))
    with open_parquet(scratch) as source:
        for batch in source.iter_batches(BATCH_ROWS):
            document = batch["document"].to_numpy()
            yield batch.set_column(0, "document", pa.array(number[document])), place[document]


def write_sets(
    paths: Sequence[Path], schema: pa.Schema, batches: Iterable[tuple[pa.RecordBatch, NDArray[np.int16]]], group: int = ROW_GROUP
) -> None:
    """Write each row to the file at its place, in order.

    Args:
        batches: rows, with the position in `paths` of each row; those below 0 are not written.
        group: rows of a row group; each file holds one in memory.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(ParquetFile(path, schema, group)) for path in paths]
        for batch, place in batches:
            for k in np.unique(place[place >= 0]).tolist():
                files[k].write(batch.filter(pa.array(place == k)))
