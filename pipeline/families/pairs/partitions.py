"""Training rows on a cluster: read by files and row groups, decided by partitions of the sentences, brought back into order.

1. `_read` cleans some row groups of a file, or a file, and leaves its rows for the partitions: all of a row where its premise
   belongs, and its keys where its hypothesis does.
2. `_decide` decides on the rows of a partition (`pipeline.data.dedup.Ledger`) and leaves the kept ones, chunk by chunk.
3. `_order` sorts the kept rows of a chunk, which come from all partitions, by their numbers.

So the result does not depend on the number of partitions, and no process holds more than a partition, in a database on disk.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.data_params import DataParams, FileSpec
from pipeline.data import cleaning, schema
from pipeline.data.dedup import Ledger
from pipeline.data.readers import open_pairs
from pipeline.data.readers.columns import Seen
from pipeline.data.readers.formats import groups_of, open_groups
from pipeline.data.readers.opening import locate
from pipeline.data.scratch import database
from pipeline.families.pairs.training_rows import KEPT_ROWS, Decided, TextFile, kept_rows, without_own_reasons
from pipeline.storage.exchange import Exchange, Spread
from pipeline.storage.object_store import found, opened

# Rows of a chunk, about, and bytes: what one process holds of the text.
_CHUNK, _CHUNK_BYTES = 2**18, 2**26
_KEYS = ("p_high", "p_low", "h_high", "h_low")
# A row of a chunk: its number in the chunk, its keys, and whether its premise belongs to the partition; otherwise it has no text.
_ROWS = pa.schema([("row", pa.int32()), *((key, pa.uint64()) for key in _KEYS), ("own", pa.bool_()), *schema.RAW_PAIRS])


def decided_on_nodes(data: DataParams, ledger: Ledger, scratch: Path, spread: Spread) -> Decided:
    """Decide on the training rows of `data.files` on a cluster.

    Args:
        ledger: has the development and test rows, and gets what `Ledger.overlap` needs.
        scratch: a file that may be written.
    """
    root = Path(data.root)
    # Below the folder of the raw data, however params.yaml spells it.
    places = [os.path.relpath(locate(root, spec.path), root.absolute()) for spec in data.files.train]
    specs = [spec.model_copy(update={"path": place}) for spec, place in zip(data.files.train, places, strict=True)]
    items = [
        {"number": number, "source": source, "groups": groups, "raw": raw}
        for number, (source, groups, raw) in enumerate(
            (source, groups, raw)
            for source, spec in enumerate(specs)
            for raw in [spread.share(locate(root, spec.path))]
            for groups in groups_of(root, spec.path, _CHUNK) or [None]
        )
    ]
    read = spread.run(_read, items, specs=specs, parts=spread.parts)
    tallies = np.zeros((len(specs), len(cleaning.REASONS) + 1), np.int64)
    seen = [Seen() for _ in specs]
    chunks: list[tuple[str, int]] = []
    for item, one in zip(items, read, strict=True):
        source = item["source"]
        tallies[source] += one["dropped"]
        seen[source].add(Seen(**one["seen"]))
        chunks += [(f"read-{item['number']}-{number}", source) for number in range(one["chunks"])]
    for spec, whole in zip(specs, seen, strict=True):
        whole.check(spec.path, spec.where)
    ledger.write_held_out(scratch)
    numbers = range(spread.parts)
    items = [{"number": number} for number in numbers]
    decided = spread.run(_decide, items, parts=spread.parts, chunks=chunks, held_out=spread.share(scratch), sources=len(specs))
    tallies += np.sum([one["tallies"] for one in decided], axis=0)
    spread.run(_order, [{"number": chunk} for chunk in range(len(chunks))], parts=spread.parts)
    exchange = spread.exchange
    ledger.take_kept(exchange.read([f"held-{number}" for number in numbers], 0))
    return Decided(
        tallies=[*tallies],
        labels=_sum(one["labels"] for one in decided),
        counts=lambda: _sum(one["counts"] for one in decided),
        kept=lambda: (exchange.read([f"ordered-{chunk}"], 0) for chunk in range(len(chunks))),
    )


def _read(
    number: int,
    source: int,
    groups: Sequence[int] | None,
    raw: str,
    *,
    specs: Sequence[FileSpec],
    parts: int,
    exchange: Exchange,
) -> dict[str, Any]:
    spec, seen = specs[source], Seen()
    dropped = np.zeros(len(cleaning.REASONS) + 1, np.int64)
    chunks = 0
    with (
        TemporaryDirectory(prefix="gausscse-") as folder,
        database(Path(folder) / "keys", threads=1) as connection,
        _opened(Path(folder) / "raw", spec, raw, groups, seen) as rows,
    ):
        ledger = Ledger(connection)
        for whole in _chunked(without_own_reasons(rows, dropped)):
            exchange.write(f"read-{number}-{chunks}", _ROWS, _by_partition(whole, ledger.halves(whole), parts))
            chunks += 1
    return {"dropped": dropped.tolist(), "seen": asdict(seen), "chunks": chunks}


@contextmanager
def _opened(root: Path, spec: FileSpec, raw: str, groups: Sequence[int] | None, seen: Seen) -> Iterator[Iterable[pa.RecordBatch]]:
    if groups is not None:
        # Of a storage on S3, only these row groups are read.
        with opened(raw) as source:
            yield open_pairs(root, spec, seen, lambda: open_groups(spec.path, source, (groups[0], groups[1])))
        return
    # The name of the file is the source of its rows.
    link = root / spec.path
    link.parent.mkdir(parents=True)
    link.symlink_to(found(raw))
    yield open_pairs(root, spec, seen)


def _chunked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _CHUNK or sum(batch.nbytes for batch in held) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _by_partition(whole: pa.Table, keys: pa.Table, parts: int) -> Iterator[pa.Table]:
    """The rows (`_ROWS`) of a chunk for each partition, in order."""
    premise, hypothesis = (keys[name].to_numpy() % parts for name in ("p_low", "h_low"))
    other = np.flatnonzero(premise != hypothesis)
    partition, row = np.append(premise, hypothesis[other]), np.append(np.arange(len(premise)), other)
    order = np.lexsort((row, partition))
    row, own = pa.array(row[order]), pa.array(order < len(premise))
    rows = whole.take(row)
    text = {name: pc.if_else(own, rows[name], None) for name in ("premise", "hypothesis", "selected", "source")}
    labels = {name: rows[name] for name in ("label", "reverse_label")}
    table = pa.table({"row": row, "own": own, **{name: keys[name].take(row) for name in _KEYS}, **text, **labels})
    ends = np.searchsorted(partition[order], np.arange(parts + 1)).tolist()
    for start, stop in pairwise(ends):
        yield table.slice(start, stop - start)


def _decide(
    number: int,
    *,
    parts: int,
    chunks: Sequence[tuple[str, int]],
    held_out: str,
    sources: int,
    exchange: Exchange,
) -> dict[str, Any]:
    with TemporaryDirectory(prefix="gausscse-") as folder, database(Path(folder) / "rows", threads=1) as connection:
        text, ledger = Path(folder) / "text", Ledger(connection, (number, parts))
        ledger.read_held_out(found(held_out))
        own: list[npt.NDArray[np.bool_]] = []
        numbers: list[npt.NDArray[np.int32]] = []
        with TextFile(text) as writer:
            for rows in exchange.each([name for name, _ in chunks], number):
                ledger.add_keys(rows.select([*_KEYS, "label", "reverse_label"]))
                # Rows without text get numbers, too.
                writer.write(rows.select(schema.RAW_PAIRS.names))
                own.append(rows["own"].to_numpy())
                numbers.append(rows["row"].to_numpy())
        reason = ledger.decide()
        reason[~np.concatenate(own)] = -1
        ends = np.cumsum([0, *map(len, own)])
        tallies = np.zeros((sources, len(cleaning.REASONS) + 1), np.int64)
        for (_, source), (start, stop) in zip(chunks, pairwise(ends.tolist()), strict=True):
            of_chunk = reason[start:stop]
            tallies[source] += cleaning.tally(of_chunk[of_chunk >= 0])
        kept = kept_rows(text, reason, ledger)
        exchange.write(f"kept-{number}", KEPT_ROWS, _by_chunk(kept, ends, np.concatenate(numbers)))
        held = ledger.kept_of_held_out()
        exchange.write(f"held-{number}", held.schema, [held])
        return {"tallies": tallies.tolist(), "labels": ledger.labels(), "counts": ledger.train_counts()}


def _order(number: int, *, parts: int, exchange: Exchange) -> None:
    kept = exchange.read([f"kept-{part}" for part in range(parts)], number)
    exchange.write(f"ordered-{number}", KEPT_ROWS, [kept.sort_by("row")])


def _by_chunk(rows: Iterator[pa.RecordBatch], ends: npt.NDArray[np.int64], numbers: npt.NDArray[np.int32]) -> Iterator[pa.Table]:
    """The kept rows of each chunk, with their numbers in the chunk.

    Args:
        rows: numbered in the partition.
        ends: the first of these numbers of each chunk, and the end of the last one.
        numbers: of all rows of the partition in their chunks.
    """
    held, chunk = KEPT_ROWS.empty_table(), 0
    for batch in rows:
        held = pa.concat_tables([held, pa.table(batch)])
        last = held["row"][-1].as_py() if len(held) else -1
        while chunk < len(ends) - 2 and last >= ends[chunk + 1]:
            count = int(np.searchsorted(held["row"].to_numpy(), ends[chunk + 1]))
            yield _renumbered(held.slice(0, count), numbers)
            held, chunk = held.slice(count), chunk + 1
    for _ in range(chunk, len(ends) - 1):
        yield _renumbered(held, numbers)
        held = held.slice(len(held))


def _renumbered(rows: pa.Table, numbers: npt.NDArray[np.int32]) -> pa.Table:
    return rows.set_column(0, "row", pa.array(numbers[rows["row"].to_numpy()], pa.int64()))


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total)
