"""Stage tokenize: prepared text → token stores. The caller passes the tokenizer in (`sentence_tokenizer`).

All text is streamed; the database of `scratch` finds the cells that contain the same sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.schema import BATCH_ROWS, DEV, LABELS, MINIMAL_PAIRS, PROMOTION, TRAIN_PAIRS
from pipeline.data.scratch import Database, database, in_order, quoted
from pipeline.data.sentence_tokenizer import Encoded, Encoder
from pipeline.data.table_io import Column, all_or_nothing, open_parquet, sha256_tree, write_batches
from pipeline.data.token_sets import SET_COLUMNS, SETS
from pipeline.data.token_store import MANIFEST, MISSING, NUMBERS, ROW_KINDS, SENTENCES, SHARD, TRIPLETS, as_int32
from pipeline.storage.exchange import Spread
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError

OUTPUTS = ("train", DEV, PROMOTION, "tests")

# Sentences passed to the tokenizer at a time: bounds memory, and is more than enough for its threads.
_CHUNK = 16_384
# Rows of a piece of a table in a token store.
_PIECE = 2**20


def tokenize(
    prepared: Path,
    out: Path,
    encoder: Encoder,
    shard_sentences: int = SHARD,
    stores: Sequence[str] = OUTPUTS,
    spread: Spread | None = None,
) -> dict[str, dict[str, Any]]:
    """Write token stores from the output of stage prepare. The same input gives the same bytes.

    Args:
        prepared: the output folder of stage prepare.
        out: the folder for the stores.
        encoder: the tokenizer to use.
        shard_sentences: sentences in each shard except the last.
        stores: the stores to write, out of `OUTPUTS`.
        spread: a cluster that tokenizes the training set; None: this process does.

    Returns:
        The content of each store's tokens.json.

    Raises:
        UserError: a file of stage prepare is missing or unreadable; `out` then stays unchanged.
    """
    described = {
        "backbone": encoder.name,
        "revision": encoder.revision,
        "tokenizer_sha256": encoder.digest(),
        "max_length": encoder.max_length,
        "pad_id": encoder.tokenizer.pad_token_id,
        "shard_sentences": shard_sentences,
    }
    manifests: dict[str, dict[str, Any]] = {}
    with all_or_nothing(out, stores) as work:
        for store in stores:
            (work / store / SENTENCES).mkdir(parents=True)
            tables = _tables(prepared, store)
            sentences = SentenceWriter(work / store / SENTENCES, encoder, shard_sentences)
            with database(work.with_name(f"scratch-{store}")) as connection:
                if spread is not None and store == "train":
                    from pipeline.data.tokenizing_parts import indexed_on_nodes

                    rows = indexed_on_nodes(tables, sentences, spread)
                else:
                    # The cells are read twice: the database numbers the sentences, then they are written.
                    numbers = _numbers(tables, connection)
                    rows = {name: indexed(table, table.columns, numbers, sentences) for name, table in tables.items()}
                for name, batches in rows.items():
                    write_batches(work / store / f"{name}.arrow", _larger(batches))
                counts = sentences.close()
            kinds = {name: list(table.kind) for name, table in tables.items() if table.kind}
            names = [name for name in tables if name not in kinds]
            manifests[store] = {
                **described,
                **counts,
                **{
                    key: [stem for stem, dot, kind in (name.partition(".") for name in names) if dot + kind == suffix]
                    for key, suffix in SETS.values()
                },
                "row_kinds": kinds,
                "rows": {name: table.rows for name, table in tables.items()},
                "sha256": sha256_tree(work / store, "*.arrow"),
            }
            write_json(work / store / MANIFEST, manifests[store])
    return manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTable:
    """A prepared table; iterating reads it in batches."""

    path: Path
    rows: int
    schema: pa.Schema
    kind: Sequence[str] | None
    """Its entry in `ROW_KINDS`; None if it is a set."""
    columns: Sequence[str]
    """The columns of sentences, in the order of the table."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if not self.rows:  # An empty table still has to give its schema.
            yield pa.RecordBatch.from_pylist([], schema=self.schema)
        with _open(self.path) as file:
            yield from file.iter_batches(BATCH_ROWS)


def _tables(prepared: Path, store: str) -> dict[str, PreparedTable]:
    """The tables of a store by name: every kind of rows, and the labelled pairs of the training set, or the sets of a development
    part, or all test sets."""
    folder = prepared / store
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; run dvc repro prepare")
    found = sorted(path.name.removesuffix(".parquet") for path in folder.glob("*.parquet"))
    kinds = {kind: ROW_KINDS[kind] for kind in ROW_KINDS if kind in found and store != "tests"}
    if store == "train":
        kinds = kinds or {TRIPLETS: ROW_KINDS[TRIPLETS]}
        # The rows that every run trains on come first; the labelled pairs add the sentences that are in none of them.
        names = [*kinds, *(name for name in (TRAIN_PAIRS, MINIMAL_PAIRS) if name in found)]
    else:
        # A development part has at least its pairs, its running text or its operation rows.
        sets = [name for name in found if name not in kinds] or ([] if store == "tests" else [store])
        names = [*sets, *kinds]
    tables: dict[str, PreparedTable] = {}
    for name in names:
        path, kind = folder / f"{name}.parquet", kinds.get(name)
        with _open(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        columns = [column for column in schema.names if column in (kind or SET_COLUMNS)]
        tables[name] = PreparedTable(path=path, rows=rows, schema=schema, kind=kind, columns=columns)
    return tables


def _open(path: Path) -> pq.ParquetFile:
    try:
        return open_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro prepare") from None
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: cannot be read as Parquet; run dvc repro -f prepare") from None


def indexed(
    table: Iterable[pa.RecordBatch], columns: Sequence[str], numbers: Column, sentences: Tokens
) -> Iterator[pa.RecordBatch]:
    """The rows of a table as sentence indices. Writes each sentence at its first cell: the one with the next number.

    Args:
        table: its rows, in batches.
        columns: those of sentences.
        numbers: of the sentences in the cells.
    """
    for batch in table:
        cells = cells_of(batch, columns)
        positions = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
        number = as_int32(numbers.take(len(positions)).to_numpy())
        highest_before = np.maximum.accumulate(np.concatenate(([sentences.written - 1], number)))[:-1]
        sentences.write(cells.take(pa.array(positions[number > highest_before])))
        index = np.full(len(cells), MISSING, dtype=np.int32)
        index[positions] = number
        by_column = index.reshape(batch.num_rows, len(columns)).T
        rows = {name: pa.array(column, pa.int32()) for name, column in zip(columns, by_column, strict=True)}
        rows |= {name: batch[name] for name in (*NUMBERS, "score") if name in batch.schema.names}
        if "label" in batch.schema.names and "class" not in rows:
            rows |= {name: _label_codes(batch, name) for name in ("label", "reverse_label")}
        yield pa.record_batch(list(rows.values()), names=list(rows))


def _larger(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about `_PIECE`, since each step of a training reads from all batches."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _PIECE:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held = []
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches() or held[:1]


def cells_of(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """(rows · columns,) the cells of a batch, row by row."""
    by_column = pa.concat_arrays([batch[name] for name in columns]) if columns else pa.array([], pa.string())
    order = np.arange(len(by_column)).reshape(len(columns), batch.num_rows).T.ravel()
    return by_column.take(pa.array(order))


def _numbers(tables: Mapping[str, PreparedTable], connection: Database) -> Column:
    """The number of the sentence in each cell, in the order table, row, column, without nulls; sentences are numbered by their
    first cell.

    Cells contain the same sentence if the MD5 of their text is equal.
    """
    connection.execute("CREATE TABLE cells (place UBIGINT, k UHUGEINT)")
    before = 0
    for table in tables.values():
        for i, column in enumerate(table.columns):
            connection.execute(
                f"""
                INSERT INTO cells SELECT {before + i} + file_row_number * {len(table.columns)}, md5_number({column})
                FROM read_parquet({quoted(table.path)}, file_row_number = true) WHERE {column} IS NOT NULL
                """
            )
        before += table.rows * len(table.columns)
    connection.execute(
        """
        CREATE TABLE sentences AS
        SELECT k, row_number() OVER (ORDER BY first) - 1 AS number FROM (SELECT k, min(place) AS first FROM cells GROUP BY k)
        """
    )
    # Join first, then sort: both in one query would need more memory than the database may use.
    connection.execute("CREATE TABLE numbered AS SELECT place, number FROM cells JOIN sentences USING (k)")
    connection.execute("DROP TABLE cells")
    connection.execute("DROP TABLE sentences")
    return Column(in_order(connection, "SELECT number FROM numbered ORDER BY place"), "number", pa.int64())


class Tokens:
    """Tokenizes sentences, and keeps the tokens."""

    def __init__(self, encoder: Encoder, written: int = 0) -> None:
        self.encoder = encoder
        self.written = written
        """Number of sentences so far, those before the first one here included."""
        # Token ids end to end, stored lengths and lengths before truncation (`Encoder.encode`).
        self.held = [encoder.encode([])]

    def write(self, text: pa.Array) -> None:
        """Append sentences."""
        for start in range(0, len(text), _CHUNK):
            self.add(self.encoder.encode(text.slice(start, _CHUNK).to_pylist()))

    def add(self, tokens: Encoded) -> None:
        """Append what `Encoder.encode` made of sentences."""
        self.held.append(tokens)
        self.written += len(tokens[1])

    def joined(self) -> Encoded:
        """All that is held, as one."""
        ids, stored, full = (np.concatenate(columns) for columns in zip(*self.held, strict=True))
        return ids, stored, full


class SentenceWriter(Tokens):
    """Writes sentences as token ids, `shard_sentences` per file. Call `close` after the last sentence."""

    def __init__(self, folder: Path, encoder: Encoder, shard_sentences: int) -> None:
        super().__init__(encoder)
        self._folder = folder
        self._shard_sentences = shard_sentences
        # Of the sentences in finished shards.
        self._counts = {"sentences": 0, "tokens": 0, "truncated": 0, "longest": 0}

    def add(self, tokens: Encoded) -> None:
        """Append what `Encoder.encode` made of sentences."""
        super().add(tokens)
        while self.written - self._counts["sentences"] >= self._shard_sentences:
            self._write(self._shard_sentences)

    def close(self) -> dict[str, int]:
        """Write the remaining sentences (a store has at least one shard) and return the counts of the whole store."""
        waiting = self.written - self._counts["sentences"]
        if waiting or not self.written:
            self._write(waiting)
        return self._counts

    def _write(self, length: int) -> None:
        ids, stored, full = self.joined()
        tokens = int(stored[:length].sum())
        self.held = [(ids[tokens:], stored[length:], full[length:])]
        ids, stored, full = ids[:tokens], stored[:length], full[:length]
        offsets = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
        rows = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids, pa.int32()))
        number = self._counts["sentences"] // self._shard_sentences
        # One batch, so that each array is contiguous in the file.
        batch = pa.record_batch({"ids": rows, "length": pa.array(full, pa.int32())})
        write_batches(self._folder / f"{number:05d}.arrow", [batch])
        self._counts["sentences"] += length
        self._counts["tokens"] += len(ids)
        self._counts["truncated"] += int((full > self.encoder.max_length).sum())
        self._counts["longest"] = max(self._counts["longest"], int(full.max(initial=0)))


def _label_codes(batch: pa.RecordBatch, column: str) -> pa.Array:
    """(n,) int8 positions in `LABELS`; `MISSING` for null."""
    codes = pc.index_in(batch[column].cast(pa.string()), value_set=pa.array(LABELS, pa.string()))
    return pc.fill_null(codes, MISSING).cast(pa.int8())
