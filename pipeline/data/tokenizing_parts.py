"""Stage tokenize on a cluster: sentences get the numbers that one process would give them, by partitions of their keys.

A unit is some row groups of a prepared table. A place is the number of a cell among the cells of all tables.

1. `_keys`: a unit leaves the key and first place of each of its sentences, for the partition of the key.
2. `_firsts`: a partition finds each sentence's first place anywhere.
3. `_numbers`: a unit numbers the sentences whose first place it has. 4. `_answers`: a partition passes these on to all units.
5. `_rows`: a unit writes its rows as numbers, and the tokens of the sentences whose first place it has.

No process holds more than a unit or a partition; this one joins the rows and tokens of the units, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.schema import BATCH_ROWS
from pipeline.data.scratch import database
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.table_io import Column
from pipeline.data.tokenizing import PreparedTable, SentenceWriter, Tokens, cells_of, indexed
from pipeline.storage.exchange import Exchange, Spread
from pipeline.storage.object_store import opened

# A unit has one row group, since the first ones hold most of the different sentences; more only where there are very many.
_MOST_UNITS = 2048
_KEYS = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("place", pa.int64())])
_FIRSTS = pa.schema([("place", pa.int64()), ("first", pa.int64())])
_NUMBERS = pa.schema([("place", pa.int64()), ("number", pa.int64())])
_TOKENS = pa.schema([("ids", pa.list_(pa.int32())), ("full", pa.int32())])


def indexed_on_nodes(
    tables: Mapping[str, PreparedTable], sentences: SentenceWriter, spread: Spread
) -> dict[str, Iterator[pa.RecordBatch]]:
    """The rows of the tables as sentence indices, by table; reading them, in order, writes the sentences.

    Raises:
        UserError: there are more sentences than numbers for them; or a task cannot read or write.
    """
    rows = {name: _rows_of_groups(table.path) for name, table in tables.items()}
    size = max(1, sum(map(len, rows.values())) // _MOST_UNITS)
    units: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    places = [0]
    for name, table in tables.items():
        shared = spread.share(table.path)
        for first in range(0, max(len(rows[name]), 1), size):
            groups = range(len(rows[name]))[first : first + size]
            unit = {"number": len(places) - 1, "file": shared, "groups": [*groups], "columns": [*table.columns]}
            units[name].append({**unit, "place": places[-1]})
            places.append(places[-1] + sum(rows[name][group] for group in groups) * len(table.columns))
    every, parts = [unit for of in units.values() for unit in of], [{"number": part} for part in range(spread.parts)]
    spread.run(_keys, every, parts=spread.parts)
    new = np.sum(spread.run(_firsts, parts, places=places), axis=0)
    before = np.cumsum([0, *new]).tolist()
    numbered = [{"number": unit["number"], "before": before[unit["number"]]} for unit in every]
    spread.run(_numbers, numbered, parts=spread.parts)
    spread.run(_answers, parts, units=len(every))
    encoder = sentences.encoder
    spread.run(_rows, [unit | one for unit, one in zip(every, numbered, strict=True)], parts=spread.parts, encoder=encoder)
    return {name: _joined(of, sentences, spread.exchange) for name, of in units.items()}


def _joined(units: Sequence[Mapping[str, Any]], sentences: SentenceWriter, exchange: Exchange) -> Iterator[pa.RecordBatch]:
    for number in (unit["number"] for unit in units):
        tokens = exchange.read([f"tokens-{number}"], 0)
        ids = tokens["ids"].combine_chunks()
        sentences.add((ids.flatten().to_numpy(), ids.value_lengths().to_numpy(), tokens["full"].to_numpy()))
        for table in exchange.batches(f"rows-{number}"):
            yield from table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _rows_of_groups(path: Path) -> list[int]:
    about = pq.read_metadata(path)
    return [about.row_group(group).num_rows for group in range(about.num_row_groups)]


def _batches(file: str, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    with opened(file) as source, pq.ParquetFile(source, pre_buffer=False) as table:
        if not groups:  # An empty table still has to give its schema.
            yield pa.RecordBatch.from_pylist([], schema=table.schema_arrow)
        yield from table.iter_batches(BATCH_ROWS, row_groups=groups)


def _keys(
    number: int, file: str, groups: Sequence[int], columns: Sequence[str], place: int, *, parts: int, exchange: Exchange
) -> None:
    """Leave the keys of the unit's sentences, and for each of its cells the unit's first place with the same sentence."""
    cells = pa.chunked_array([cells_of(batch, columns) for batch in _batches(file, groups)], pa.string())
    with TemporaryDirectory(prefix="gausscse-") as folder, database(Path(folder) / "keys", threads=1) as connection:
        connection.register("cells", pa.table({"text": cells, "place": np.arange(place, place + len(cells))}))
        found = connection.sql(
            """
            SELECT place, (k >> 64)::UBIGINT AS high, (k & 18446744073709551615::UHUGEINT)::UBIGINT AS low,
                   min(place) OVER (PARTITION BY k) AS first
            FROM (SELECT place, md5_number(text) AS k FROM cells WHERE text IS NOT NULL) ORDER BY place
            """
        ).to_arrow_table()
    exchange.write(f"cells-{number}", pa.schema([("first", pa.int64())]), [found])
    own = found.filter(pa.array(found["place"].to_numpy() == found["first"].to_numpy()))
    exchange.write(f"keys-{number}", _KEYS, _divided(own, own["low"].to_numpy() % parts, parts))


def _firsts(number: int, *, places: Sequence[int], exchange: Exchange) -> list[int]:
    """Returns for each unit how many sentences of this partition it has first."""
    keys = exchange.read([f"keys-{unit}" for unit in range(len(places) - 1)], number)
    with TemporaryDirectory(prefix="gausscse-") as folder, database(Path(folder) / "keys", threads=1) as connection:
        connection.register("keys", keys)
        query = "SELECT place, min(place) OVER (PARTITION BY high, low) AS first FROM keys ORDER BY place"
        found = connection.sql(query).to_arrow_table()
    ends = np.searchsorted(found["place"].to_numpy(), places).tolist()
    exchange.write(f"firsts-{number}", _FIRSTS, (found.slice(start, stop - start) for start, stop in pairwise(ends)))
    new = found["place"].to_numpy() == found["first"].to_numpy()
    return [int(new[start:stop].sum()) for start, stop in pairwise(ends)]


def _numbers(number: int, before: int, *, parts: int, exchange: Exchange) -> None:
    found = [*exchange.each([f"firsts-{part}" for part in range(parts)], number)]
    partition = np.repeat(np.arange(parts), [len(table) for table in found])
    table = pa.concat_tables(found)
    new = np.flatnonzero(table["place"].to_numpy() == table["first"].to_numpy())
    new = new[np.argsort(table["place"].to_numpy()[new])]
    places = table["place"].to_numpy()[new]
    numbered = pa.table({"place": places, "number": before + np.arange(len(new))})
    exchange.write(f"numbers-{number}", _NUMBERS, _divided(numbered, partition[new], parts))


def _answers(number: int, *, units: int, exchange: Exchange) -> None:
    known = exchange.read([f"numbers-{unit}" for unit in range(units)], number)
    exchange.write(
        f"answers-{number}",
        _NUMBERS,
        (
            pa.table({"place": table["place"], "number": _looked_up(known, table["first"])})
            for table in exchange.batches(f"firsts-{number}")
        ),
    )


def _rows(
    number: int,
    before: int,
    file: str,
    groups: Sequence[int],
    columns: Sequence[str],
    place: int,
    *,
    parts: int,
    encoder: Encoder,
    exchange: Exchange,
) -> None:
    known = exchange.read([f"answers-{part}" for part in range(parts)], number).sort_by("place")
    cells = pa.record_batch({"number": _looked_up(known, exchange.read([f"cells-{number}"], 0)["first"])})
    tokens = Tokens(encoder, before)
    rows = [*indexed(_batches(file, groups), columns, Column(iter([cells]), "number", pa.int64()), tokens)]
    exchange.write(f"rows-{number}", rows[0].schema, rows)
    ids, stored, full = tokens.joined()
    ends = np.concatenate(([0], np.cumsum(stored)))
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(ids, pa.int32()))
    exchange.write(f"tokens-{number}", _TOKENS, [pa.table({"ids": lists, "full": full})])


def _looked_up(known: pa.Table, places: pa.ChunkedArray) -> Any:
    """The numbers that are known of places, all of which are among those of `known`, in order."""
    return known["number"].to_numpy()[np.searchsorted(known["place"].to_numpy(), places.to_numpy())]


def _divided(rows: pa.Table, partition: Any, parts: int) -> Iterator[pa.Table]:
    """The rows of each partition, in order."""
    order = np.argsort(partition, kind="stable")
    ends = np.searchsorted(partition[order], np.arange(parts + 1)).tolist()
    divided = rows.take(pa.array(order))
    return (divided.slice(start, stop - start) for start, stop in pairwise(ends))
