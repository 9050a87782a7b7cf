"""Operation rows of stage prepare: rows for sentence operators → sets that share no sentence with training; what was dropped.

The text is streamed, twice. The first pass writes it to a scratch file and keeps hashes of 64 bits in memory, which takes about
300 bytes a row. Rows that share a sentence are connected, and so are rows connected to the same row: a set takes a connected
component whole. The second pass writes the sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.config.data_params import DataParams
from pipeline.config.params import EvaluateParams
from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import (
    DEV_OPERATIONS,
    MOST_TARGETS,
    OPERATION_ROWS,
    OPERATIONS,
    OPERATIONS_SUFFIX,
    PROMOTION_OPERATIONS,
    TARGETS,
    TARGETS_SUFFIX,
)
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.families.operations.generated import OperationRow
from pipeline.families.operations.sources import OperationSource, operation_sources
from pipeline.families.prepare import DEV_SHARE, TRAIN, Report, counted, dropped, set_file
from pipeline.utils.errors import UserError

LEAST_ROWS = 2
"""Rows of an operation that a set needs to score it, because the answer is sought among the set's answers."""

Counts = dict[str, Any]
"""Counts of one set, for prepare.json."""

UInt64s = npt.NDArray[np.uint64]
_REASONS = ("duplicate", "leaked", "outside_share")
_DUPLICATE, _LEAKED, _OUTSIDE = range(-1, -4, -1)
_PARTS = (DEV_OPERATIONS, PROMOTION_OPERATIONS)


def prepare(data: DataParams, work: Path, evaluate: EvaluateParams | None) -> Report:
    """Write the sets of operation rows into `work`; returns operations.

    Raises:
        UserError: an input is wrong, or a set has too few rows.
    """
    scratch = work.with_name("scratch-operations")
    return {"operations": prepare_operations(operation_sources(data), data.promotion_share, work, scratch)}


def profile(prepared: Path, report: Report) -> Report:
    """The counts again."""
    return report


def contents(data: DataParams) -> list[Iterable[Any]]:
    """The rows of all sets, as `prepare` reads them."""
    return [source.rows() for source in operation_sources(data).values()]


def lines(report: Report) -> Iterator[str]:
    """What stage prepare prints of its counts."""
    for name, counts in report["operations"].items():
        yield counted(f"{name} (operations)", counts)


def warnings(profile: Mapping[str, Any]) -> tuple[str, ...]:
    """None."""
    return ()


def prepare_operations(
    sources: Mapping[str, OperationSource], promotion_share: float, work: Path, scratch: Path
) -> dict[str, Counts]:
    """Write each set of operation rows; returns set → counts, with the two development parts; empty without sources.

    Training rows go to train/operations.parquet, the others to dev/, promotion/ and tests/ as SET.operations.parquet. Rows that
    repeat an earlier one of the same set are dropped. Training rows of a component with a row of another set are dropped, too.
    A hash of the component decides whether its training rows become development rows (unless a source gives those), and whether
    its development rows are in the promotion part.

    Args:
        work: folder of the stage's outputs.
        scratch: a new folder for a copy of the text; the caller removes it.

    Raises:
        UserError: a source cannot be read, or a set has too few rows.
    """
    if not sources:
        return {}
    scratch.mkdir()
    text = scratch / "operations.parquet"
    with pq.ParquetWriter(text, OPERATION_ROWS, compression="lz4", use_dictionary=False) as writer:
        entered = [_enter(part, source, writer) for part, source in enumerate(sources.values())]
    rows = _joined(keys for keys, _ in entered)
    component, fractions = _components(rows, all(source.connected for source in sources.values()))
    names, place = _places(sources, rows, component, fractions, promotion_share)
    _write(text, place, [set_file(work, name, "operations", OPERATIONS_SUFFIX) for name in names])
    if TRAIN in names:
        kept = _kept_targets(rows, place == names.index(TRAIN))
        _write_targets(text, kept, work / "tests" / f"{TRAIN}{TARGETS_SUFFIX}.parquet")
    counts: dict[str, Counts] = {}
    trained: set[str] = set()
    for number, name in enumerate(names):
        # The development parts have the name of the rows they are cut from.
        source = sources.get(name) or sources.get(DEV_OPERATIONS) or sources[TRAIN]
        without = entered[number][1] if number < len(entered) else 0
        counts[name] = {"file": source.name, **_counts(number, rows, place, component), "other_than_two_parts": without}
        if name == TRAIN:
            trained = {operation for operation, n in counts[name]["operations"].items() if n}
        _check(name, counts[name], trained, source, DEV_OPERATIONS in sources)
    return counts


class _Keys(NamedTuple):
    """n rows, without their text."""

    part: npt.NDArray[np.int16]
    """(n,) the set a row comes from."""
    operation: npt.NDArray[np.int8]
    sentences: UInt64s
    """(n, 3) hashes of a, b and the target; where a row has only a, of a twice."""
    key: UInt64s
    """(n,) hashes of the whole rows."""


def _enter(part: int, source: OperationSource, writer: pq.ParquetWriter) -> tuple[_Keys, int]:
    """First pass over set `part`: its rows, and the number of rows of the input that gave none."""
    without = 0

    def given() -> Iterator[tuple[str, OperationRow]]:
        nonlocal without
        for name, rows in source.rows():
            without += not rows
            for row in rows:
                yield name, row

    chunks = [_Keys(np.zeros(0, np.int16), np.zeros(0, np.int8), np.zeros((0, 3), np.uint64), np.zeros(0, np.uint64))]
    stream = given()
    while chunk := list(islice(stream, BATCH_ROWS)):
        operation = np.array([OPERATIONS.index(row.operation) for _, row in chunk], np.int8)
        sentences = np.array([_hashes(row) for _, row in chunk], np.uint64)
        keys = np.array([_hash(repr((row.operation, row.a, row.b, row.target))) for _, row in chunk], np.uint64)
        chunks.append(_Keys(np.full(len(chunk), part, np.int16), operation, sentences, keys))
        texts = [[row.a for _, row in chunk], [row.b for _, row in chunk], [row.target for _, row in chunk]]
        columns = [pa.array(operation), *(pa.array(text, pa.string()) for text in texts), pa.array([name for name, _ in chunk])]
        writer.write_table(pa.table(columns, schema=OPERATION_ROWS))
    return _joined(chunks), without


def _hashes(row: OperationRow) -> tuple[int, int, int]:
    a = _hash(row.a)
    return a, a if row.b is None else _hash(row.b), _hash(row.target)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _joined(some: Iterable[_Keys]) -> _Keys:
    return _Keys(*map(np.concatenate, zip(*some, strict=True)))


def _components(rows: _Keys, connected: bool) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The connected components of n rows.

    Returns:
        component: (n,) the number of each row's component.
        fractions: (components, 3) numbers in [0, 1) that depend on the smallest hash in the component alone.
    """
    nodes, node = np.unique(rows.sentences if connected else rows.key, return_inverse=True)
    if connected:
        a, b, target = node.reshape(-1, 3).T
        edges = (np.concatenate([a, a]), np.concatenate([b, target]))
        graph = coo_array((np.ones(2 * len(a), np.bool_), edges), shape=(len(nodes), len(nodes)))
        of_node: npt.NDArray[np.intp] = connected_components(graph, directed=False)[1]
        component = of_node[a]
        # The nodes are in order, so the first one of a component has the smallest hash.
        nodes = nodes[np.unique(of_node, return_index=True)[1]]
    else:
        component = node
    digests = b"".join(hashlib.blake2b(key.to_bytes(8, "big"), digest_size=24).digest() for key in nodes.tolist())
    return component, np.frombuffer(digests, ">u8").reshape(-1, 3) / 2.0**64


def _places(
    sources: Mapping[str, OperationSource],
    rows: _Keys,
    component: npt.NDArray[np.intp],
    fractions: npt.NDArray[np.float64],
    promotion_share: float,
) -> tuple[list[str], npt.NDArray[np.int16]]:
    """The names of the sets that are written, and (n,) each row's set, or a reason below 0 why it is dropped."""
    names, part, place = [*sources], rows.part, rows.part.copy()
    dev, promotion, test = fractions[component].T
    outside = test >= np.array([source.share for source in sources.values()])[part]
    if TRAIN in names:
        names += [name for name in _PARTS if name not in names]
        trained = part == names.index(TRAIN)
        held = np.zeros(len(fractions), np.bool_)
        held[component[~trained & ~outside]] = True
        if DEV_OPERATIONS not in sources:
            place[trained & (dev < DEV_SHARE)] = names.index(DEV_OPERATIONS)
        place[(place == names.index(DEV_OPERATIONS)) & (promotion < promotion_share)] = names.index(PROMOTION_OPERATIONS)
        place[trained & held[component]] = _LEAKED
    place[outside] = _OUTSIDE
    for number in range(len(sources)):
        of_set = np.flatnonzero((part == number) & ~outside)
        repeats = np.ones(len(of_set), np.bool_)
        repeats[np.unique(rows.key[of_set], return_index=True)[1]] = False
        place[of_set[repeats]] = _DUPLICATE
    return names, place


def _write(text: Path, place: npt.NDArray[np.int16], paths: Sequence[Path]) -> None:
    """Second pass: write the sets."""
    first = 0
    with ExitStack() as stack:
        files = [stack.enter_context(ParquetFile(path, OPERATION_ROWS)) for path in paths]
        source = stack.enter_context(open_parquet(text))
        for batch in source.iter_batches(BATCH_ROWS):
            places = place[first : first + batch.num_rows]
            first += batch.num_rows
            for number in np.unique(places[places >= 0]).tolist():
                files[number].write(batch.filter(pa.array(places == number)))


def _kept_targets(rows: _Keys, trained: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(n,) of the training rows, those whose target is kept: the first of each target, and of these the smallest hashes."""
    kept = np.zeros(len(trained), np.bool_)
    for operation in range(len(OPERATIONS)):
        own = np.flatnonzero(trained & (rows.operation == operation))
        # Sorted by the hash of the target, which is as good as a draw.
        kept[own[np.unique(rows.sentences[own, 2], return_index=True)[1][:MOST_TARGETS]]] = True
    return kept


def _write_targets(text: Path, kept: npt.NDArray[np.bool_], path: Path) -> None:
    first = 0
    with ParquetFile(path, TARGETS) as file, open_parquet(text) as source:
        for batch in source.iter_batches(BATCH_ROWS, columns=["operation", "target"]):
            rows = batch.filter(pa.array(kept[first : first + batch.num_rows]))
            first += batch.num_rows
            file.write(rows.rename_columns(TARGETS.names))


def _counts(number: int, rows: _Keys, place: npt.NDArray[np.int16], component: npt.NDArray[np.intp]) -> Counts:
    """Counts of a set. A dropped row counts in the set of its source, whatever part it would be in."""
    kept = place == number
    dropped = {reason: int(((place == -1 - k) & (rows.part == number)).sum()) for k, reason in enumerate(_REASONS)}
    a, b, target = rows.sentences[kept].T
    sizes = np.unique(component[kept], return_counts=True)[1]
    per_operation = np.bincount(rows.operation[kept], minlength=len(OPERATIONS))
    return {
        "rows_in": int(kept.sum()) + sum(dropped.values()),
        "rows_out": int(kept.sum()),
        "dropped": dropped,
        "operations": dict(zip(OPERATIONS, per_operation.tolist(), strict=True)),
        "target_is_input": int(((target == a) | (target == b)).sum()),
        "components": len(sizes),
        "largest_component": int(sizes.max(initial=0)),
    }


def _check(name: str, counts: Counts, trained: set[str], source: OperationSource, has_dev: bool) -> None:
    """Refuse a set without rows, and a set that has, or in case of a development part should have, few rows of an operation."""
    if not counts["rows_out"] and name not in _PARTS:
        lost = counts["dropped"] | {"other_than_two_parts": counts["other_than_two_parts"]}
        why = dropped(lost, "all of them in the development set")
        role, which = ("to train on", "of sentences that are in no other set") if name == TRAIN else (f"for set {name!r}", "")
        raise UserError(f"{counts['file']}: no operation row is left {role} ({why}); {source.remedy} {which}".rstrip())
    if name == TRAIN:
        return
    for operation, number in counts["operations"].items():
        cut = name in _PARTS
        needed = number or (cut and operation in trained)
        if needed and number < LEAST_ROWS:
            remedy = source.remedy if has_dev or not cut else f"{source.remedy}, or name data.files.operations_dev"
            raise UserError(
                f"{counts['file']}: {'its part' if cut else 'the set'} {name} has {number} row{'s' * (number != 1)} of "
                f"{operation}; it needs {LEAST_ROWS}, because the answer is sought among its answers: {remedy}"
            )
