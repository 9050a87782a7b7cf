"""Operation rows of stage prepare: rows for sentence operators → sets that share no sentence with training; what was dropped.

Hashes of 64 bits stay in memory, which takes about 300 bytes a row. Rows that share a sentence are connected, and so are rows
connected to the same row: a set takes a connected component whole.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.config.data_params import DataParams, OperationSpec, OperationTestSpec
from pipeline.config.params import EvaluateParams
from pipeline.data import schema
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.readers.opening import resolve
from pipeline.data.split import too_few
from pipeline.families import division
from pipeline.families.division import Source
from pipeline.families.operations.generated import OperationRow, generate_operations
from pipeline.families.operations.params import FAMILY
from pipeline.families.operations.readers import read_operations
from pipeline.families.prepare import Report, counted, dropped
from pipeline.storage.exchange import Spread
from pipeline.utils.errors import UserError

LEAST_ROWS = 2
"""Rows of an operation that a set needs to score it, because the answer is sought among the set's answers."""


def prepare(data: DataParams, work: Path, evaluate: EvaluateParams | None, spread: Spread | None = None) -> Report:
    """Write the sets of operation rows into `work`; returns operations.

    Raises:
        UserError: an input is wrong, or a set has too few rows.
    """
    return {"operations": _prepare_rows(data, work, work.with_name("scratch-operations"))}


def profile(prepared: Path, report: Report) -> Report:
    """The counts again."""
    return report


def contents(data: DataParams) -> list[Iterable[Any]]:
    """The rows of all sets, as `prepare` reads them."""
    return [source.rows() for source in _sources(data).values()]


def lines(report: Report) -> Iterator[str]:
    """What stage prepare prints of its counts."""
    for name, counts in report["operations"].items():
        yield counted(f"{name} (operations)", counts)


def warnings(profile: Mapping[str, Any]) -> Iterator[str]:
    """Of a promotion part with too few whole sentences."""
    counts = profile["operations"].get(schema.PROMOTION_OPERATIONS)
    if counts is not None and (few := too_few(schema.PROMOTION_OPERATIONS, counts["whole_sentences"], FAMILY.groups)):
        yield few


def _sources(data: DataParams) -> dict[str, Source]:
    def generated(split: Split, number: int) -> Source:
        def read() -> Iterator[tuple[str, tuple[OperationRow, ...]]]:
            try:
                for row in generate_operations(split, number, data.seed):
                    yield GENERATED, (row,)
            except ValueError as error:
                raise UserError(f"data.generated.operations: {error}; ask for fewer") from None

        return Source(GENERATED, read)

    def files(specs: Sequence[OperationSpec]) -> Source:
        def read() -> Iterator[tuple[str, tuple[OperationRow, ...]]]:
            for spec in specs:
                path = resolve(Path(data.root), spec.path)
                for rows in read_operations(path, where=spec.where, form=spec):
                    yield path.stem, rows

        share = specs[0].share if isinstance(specs[0], OperationTestSpec) else 1.0
        name = ", ".join(dict.fromkeys(spec.path for spec in specs))
        return Source(name, read, share)

    named = data.files.operations, data.files.operations_dev, data.files.operations_tests
    return division.sources_of(data, "operations", data.generated.operations, named, generated, files)


def _prepare_rows(data: DataParams, work: Path, scratch: Path) -> dict[str, Any]:
    """Write each set of operation rows; returns set → counts, with the two development parts; empty without sources.

    Training rows go to train/operations.parquet, the others to dev/, promotion/ and tests/ as SET.operations.parquet. Rows that
    repeat an earlier one of the same set are dropped. Training rows of a component with a row of another set are dropped, too.
    A hash of the component decides whether its training rows become development rows (unless a source gives those), and whether
    its development rows are in the promotion part. A dropped row counts in the set of its source.

    Args:
        work: folder of the stage's outputs.
        scratch: a new folder for a copy of the text; the caller removes it.
    """
    if not (sources := _sources(data)):
        return {}
    scratch.mkdir()
    text, given = scratch / "operations.parquet", [*sources]
    rows, without = _enter(sources, text)
    component, fractions = _components(rows, data.source == "files")
    dev, promotion, test = fractions[component].T
    outside = test >= np.array([source.share for source in sources.values()])[rows.part]
    names, place = division.places(
        given,
        "operations",
        rows.part,
        rows.key,
        component,
        (dev, promotion),
        data.promotion_share,
        left_out=outside,
        repeatable=np.ones(len(outside), np.bool_),
    )
    paths = [division.set_file(work, name, "operations", schema.OPERATIONS_SUFFIX) for name in names]
    division.write_sets(paths, schema.OPERATION_ROWS, division.placed(text, place))
    if division.TRAIN in names:
        kept = division.placed(text, _target_places(rows, place == names.index(division.TRAIN)))
        targets = ((batch.select(["operation", "target"]).rename_columns(schema.TARGETS.names), own) for batch, own in kept)
        division.write_sets([work / "tests" / f"{division.TRAIN}{schema.TARGETS_SUFFIX}.parquet"], schema.TARGETS, targets)
    counts: dict[str, Any] = {}
    for number, name in enumerate(names):
        # The development parts have the name of the rows they are cut from.
        source = sources.get(name) or sources.get(schema.DEV_OPERATIONS) or sources[division.TRAIN]
        counts[name] = {
            "file": source.name,
            **_counts(number, rows, place, component),
            "other_than_two_parts": without.get(name, 0),
        }
        _check(name, counts, data, schema.DEV_OPERATIONS in sources)
    return counts


class _Keys(NamedTuple):
    """n rows, without their text."""

    part: NDArray[np.int16]
    """(n,) the set a row comes from."""
    operation: NDArray[np.int8]
    sentences: NDArray[np.uint64]
    """(n, 3) hashes of a, b and the target; where a row has only a, of a twice."""
    key: NDArray[np.uint64]
    """(n,) hashes of the whole rows."""


def _enter(sources: Mapping[str, Source], text: Path) -> tuple[_Keys, dict[str, int]]:
    """Write the text of all rows; returns the rows, and for each set the number of rows of the input that gave none."""
    parts, operations, sentences, keys = array("h"), array("b"), array("Q"), array("Q")
    without = dict.fromkeys(sources, 0)

    def given() -> Iterator[tuple[Any, ...]]:
        for part, (name, source) in enumerate(sources.items()):
            for file, rows in source.rows():
                without[name] += not rows
                for row in rows:
                    parts.append(part)
                    operations.append(schema.OPERATIONS.index(row.operation))
                    sentences.extend(_hash(one) for one in (row.a, row.a if row.b is None else row.b, row.target))
                    keys.append(_hash(repr((row.operation, row.a, row.b, row.target))))
                    yield len(parts) - 1, operations[-1], row.a, row.b, row.target, file

    division.write_scratch(text, pa.schema([("document", pa.int32()), *schema.OPERATION_ROWS]), given())
    columns = np.array(parts), np.array(operations), np.array(sentences).reshape(-1, 3), np.array(keys)
    return _Keys(*columns), without


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _components(rows: _Keys, connected: bool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The components of n rows: rows that share a sentence are `connected`, otherwise only equal rows are.

    Returns:
        component: (n,) the number of each row's component.
        fractions: (components, 3) numbers in [0, 1) that depend on the smallest hash in the component alone.
    """
    nodes, node = np.unique(rows.sentences if connected else rows.key, return_inverse=True)
    component = node
    if connected:
        a, b, target = node.reshape(-1, 3).T
        edges = (np.concatenate([a, a]), np.concatenate([b, target]))
        graph = coo_array((np.ones(2 * len(a), np.bool_), edges), shape=(len(nodes), len(nodes)))
        of_node: NDArray[np.intp] = connected_components(graph, directed=False)[1]
        component = of_node[a]
        # The nodes are in order, so the first one of a component has the smallest hash.
        nodes = nodes[np.unique(of_node, return_index=True)[1]]
    digests = b"".join(hashlib.blake2b(key.to_bytes(8, "big"), digest_size=24).digest() for key in nodes.tolist())
    return component, np.frombuffer(digests, ">u8").reshape(-1, 3) / 2.0**64


def _target_places(rows: _Keys, trained: NDArray[np.bool_]) -> NDArray[np.int16]:
    """(n,) 0 for training rows whose target is kept: the first of each target, and of these the smallest hashes; otherwise −1."""
    place = np.full(len(trained), -1, np.int16)
    for operation in range(len(schema.OPERATIONS)):
        own = np.flatnonzero(trained & (rows.operation == operation))
        # Sorted by the hash of the target, which is as good as a draw.
        place[own[np.unique(rows.sentences[own, 2], return_index=True)[1][: schema.MOST_TARGETS]]] = 0
    return place


def _counts(number: int, rows: _Keys, place: NDArray[np.int16], component: NDArray[np.intp]) -> dict[str, Any]:
    kept = place == number
    reasons = {"duplicate": division.DUPLICATE, "leaked": division.LEAKED, "outside_share": division.LEFT_OUT}
    lost = {reason: int(((place == code) & (rows.part == number)).sum()) for reason, code in reasons.items()}
    a, b, target = rows.sentences[kept].T
    sizes = np.unique(component[kept], return_counts=True)[1]
    per_operation = np.bincount(rows.operation[kept], minlength=len(schema.OPERATIONS))
    return {
        "rows_in": int(kept.sum()) + sum(lost.values()),
        "rows_out": int(kept.sum()),
        "dropped": lost,
        "operations": dict(zip(schema.OPERATIONS, per_operation.tolist(), strict=True)),
        "target_is_input": int(((target == a) | (target == b)).sum()),
        "whole_sentences": len(np.unique(np.where(rows.operation[kept] == schema.OPERATIONS.index("fusion"), target, a))),
        "components": len(sizes),
        "largest_component": int(sizes.max(initial=0)),
    }


def _check(name: str, counts: Mapping[str, Any], data: DataParams, has_dev: bool) -> None:
    """Refuse a set without rows, and a set that has, or in case of a development part should have, few rows of an operation."""
    more = "add rows" if data.source == "files" else "raise data.generated.operations"
    own, cut = counts[name], name in (schema.DEV_OPERATIONS, schema.PROMOTION_OPERATIONS)
    if not own["rows_out"] and not cut:
        why = dropped(
            own["dropped"] | {"other_than_two_parts": own["other_than_two_parts"]}, "all of them in the development set"
        )
        role = "to train on" if name == division.TRAIN else f"for set {name!r}"
        which = " of sentences that are in no other set" if name == division.TRAIN else ""
        raise UserError(f"{own['file']}: no operation row is left {role} ({why}); {more}{which}")
    for operation, number in own["operations"].items() if name != division.TRAIN else ():
        trained = division.TRAIN in counts and counts[division.TRAIN]["operations"][operation]
        if (number or (cut and trained)) and number < LEAST_ROWS:
            remedy = more if has_dev or not cut else f"{more}, or name data.files.operations_dev"
            raise UserError(
                f"{own['file']}: {'its part' if cut else 'the set'} {name} has {number} row{'s' * (number != 1)} of {operation}; "
                f"it needs {LEAST_ROWS}, because the answer is sought among its answers: {remedy}"
            )
