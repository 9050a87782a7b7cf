"""Stage tokenize: prepared text → token stores. The caller passes the tokenizer in (`sentence_tokenizer`).

All text is streamed; the database of `scratch` finds the cells that contain the same sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import (
    DEV,
    LABELS,
    OPERATIONS_SUFFIX,
    PROMOTION,
    STS_SUFFIX,
    TARGETS_SUFFIX,
    TASK_SUFFIX,
    TEXT_SUFFIX,
    TRAIN_PAIRS,
)
from pipeline.data.scratch import Database, database, in_order
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.table_io import ArrowFile, all_or_nothing, open_parquet, sha256_tree, write_arrow
from pipeline.data.token_sets import SET_COLUMNS
from pipeline.data.token_store import MANIFEST, MISSING, NUMBERS, ROW_KINDS, SENTENCES, SHARD, TRIPLETS
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError

OUTPUTS = ("train", DEV, PROMOTION, "tests")

# Key of the manifest → the suffix of the sets it lists.
_SETS = {
    "nli_sets": "",
    "sts_sets": STS_SUFFIX,
    "text_sets": TEXT_SUFFIX,
    "task_sets": TASK_SUFFIX,
    "operation_sets": OPERATIONS_SUFFIX,
    "target_sets": TARGETS_SUFFIX,
}

# Sentences passed to the tokenizer at a time: bounds memory, and is more than enough for its threads.
_CHUNK = 16_384
_INT32_MAX = 2**31 - 1


def tokenize(
    prepared: Path, out: Path, encoder: Encoder, shard_sentences: int = SHARD, stores: Sequence[str] = OUTPUTS
) -> dict[str, dict[str, Any]]:
    """Write token stores from the output of stage prepare. The same input gives the same bytes.

    Args:
        prepared: the output folder of stage prepare.
        out: the folder for the stores.
        encoder: the tokenizer to use.
        shard_sentences: sentences in each shard except the last.
        stores: the stores to write, out of `OUTPUTS`.

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
            with database(work.with_name(f"scratch-{store}")) as connection:
                counts = _write_store(tables, work / store, encoder, shard_sentences, connection)
            kinds = {name: dict(ROW_KINDS[name]) for name, table in tables.items() if table.is_kind}
            names = [name for name in tables if name not in kinds]
            manifests[store] = {
                **described,
                **counts,
                **{
                    key: [stem for stem, dot, kind in (name.partition(".") for name in names) if dot + kind == suffix]
                    for key, suffix in _SETS.items()
                },
                "row_kinds": kinds,
                "rows": {name: table.rows for name, table in tables.items()},
                "sha256": sha256_tree(work / store, "*.arrow"),
            }
            write_json(work / store / MANIFEST, manifests[store])
    return manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A prepared table; iterating reads it in batches."""

    path: Path
    rows: int
    schema: pa.Schema
    is_kind: bool
    """Whether it holds rows of a kind (`ROW_KINDS`); if not, it is a set."""

    @property
    def name(self) -> str:
        """The name of the kind or of the set."""
        return self.path.name.removesuffix(".parquet")

    @property
    def columns(self) -> list[str]:
        """The columns of sentences, in the order of the table."""
        names = ROW_KINDS[self.name] if self.is_kind else SET_COLUMNS
        return [name for name in self.schema.names if name in names]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if not self.rows:  # An empty table still has to give its schema.
            yield pa.RecordBatch.from_pylist([], schema=self.schema)
        with _open(self.path) as file:
            yield from file.iter_batches(BATCH_ROWS)


def _tables(prepared: Path, store: str) -> dict[str, Table]:
    """The tables of a store by name: every kind of rows, and the labelled pairs of the training set, or the sets of a development
    part, or all test sets."""
    folder = prepared / store
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; run dvc repro prepare")
    found = sorted(path.name.removesuffix(".parquet") for path in folder.glob("*.parquet"))
    kinds = [kind for kind in ROW_KINDS if kind in found] if store != "tests" else []
    if store == "train":
        sets: list[str] = []
        kinds = kinds or [TRIPLETS]
    else:
        # A development part has at least its pairs, its running text or its operation rows.
        sets = [name for name in found if name not in kinds] or ([] if store == "tests" else [store])
    tables: dict[str, Table] = {}
    # The rows that every run trains on come first; the labelled pairs add the sentences that are in none of them.
    labelled = [TRAIN_PAIRS] if store == "train" and (folder / f"{TRAIN_PAIRS}.parquet").exists() else []
    for name in (*sets, *kinds, *labelled):
        path = folder / f"{name}.parquet"
        with _open(path) as file:
            tables[name] = Table(path=path, rows=file.metadata.num_rows, schema=file.schema_arrow, is_kind=name in kinds)
    return tables


def _open(path: Path) -> pq.ParquetFile:
    try:
        return open_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro prepare") from None
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: cannot be read as Parquet; run dvc repro -f prepare") from None


def _write_store(
    tables: Mapping[str, Table], folder: Path, encoder: Encoder, shard_sentences: int, connection: Database
) -> dict[str, int]:
    """Write the shards of sentences and one Arrow file per table.

    Sentences are numbered by their first cell, in the order table, row, column, without nulls. The cells are read twice: the
    database numbers the sentences, then this function writes them. A cell is the first of its sentence if its number is higher
    than all numbers before it.
    """
    numbers = _numbers(tables, connection)
    highest_before = -1
    sentences = SentenceWriter(folder / SENTENCES, encoder, shard_sentences)
    for name, table in tables.items():
        with ArrowFile(folder / f"{name}.arrow") as file:
            for batch in table:
                cells = _cells(batch, table.columns)
                positions = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
                number = numbers.take(len(positions))
                highest = np.maximum.accumulate(np.concatenate(([highest_before], number)))
                sentences.write(cells.take(pa.array(positions[number > highest[:-1]])))
                highest_before = int(highest[-1])
                index = np.full(len(cells), MISSING, dtype=np.int32)
                index[positions] = number
                rows = index.reshape(batch.num_rows, len(table.columns))
                file.write(_indices(batch, dict(zip(table.columns, rows.T, strict=True))))
    return sentences.close()


def _cells(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """(rows · columns,) the cells of a batch, row by row."""
    by_column = pa.concat_arrays([batch[name] for name in columns]) if columns else pa.array([], pa.string())
    order = np.arange(len(by_column)).reshape(len(columns), batch.num_rows).T.ravel()
    return by_column.take(pa.array(order))


def _indices(batch: pa.RecordBatch, sentences: Mapping[str, npt.NDArray[np.int32]]) -> dict[str, pa.Array]:
    rows = {name: pa.array(index, pa.int32()) for name, index in sentences.items()}
    rows |= {name: batch[name] for name in NUMBERS if name in batch.schema.names}
    if "score" in batch.schema.names:
        rows["score"] = batch["score"]
    elif "label" in batch.schema.names and "class" not in batch.schema.names:
        rows["label"] = _label_codes(batch, "label")
        rows["reverse_label"] = _label_codes(batch, "reverse_label")
    return rows


class _Numbers:
    """The sentence numbers of the cells in order, taken in pieces of any length."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest = np.zeros(0, dtype=np.int32)

    def take(self, length: int) -> npt.NDArray[np.int32]:
        parts = [self._rest]
        while sum(map(len, parts)) < length:
            parts.append(next(self._batches)["number"].to_numpy().astype(np.int32))
        joined = np.concatenate(parts)
        self._rest = joined[length:]
        return joined[:length]


def _numbers(tables: Mapping[str, Table], connection: Database) -> _Numbers:
    """Number the sentences by their first cell. Cells contain the same sentence if the MD5 of their text is equal."""
    connection.execute("CREATE TABLE cells (place UBIGINT, k UHUGEINT)")
    before = 0
    for table in tables.values():
        name = str(table.path).replace("'", "''")
        for i, column in enumerate(table.columns):
            connection.execute(
                f"""
                INSERT INTO cells SELECT {before + i} + file_row_number * {len(table.columns)}, md5_number({column})
                FROM read_parquet('{name}', file_row_number = true) WHERE {column} IS NOT NULL
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
    return _Numbers(in_order(connection, "SELECT number FROM numbered ORDER BY place"))


class SentenceWriter:
    """Writes sentences as token ids, `shard_sentences` per file. Call `close` after the last sentence."""

    def __init__(self, folder: Path, encoder: Encoder, shard_sentences: int) -> None:
        self._folder = folder
        self._encoder = encoder
        self._shard_sentences = shard_sentences
        self._text: list[pa.Array] = []
        self._waiting = 0
        self._shards = 0
        self._counts = {"sentences": 0, "tokens": 0, "truncated": 0, "longest": 0}

    def write(self, text: pa.Array) -> None:
        """Append sentences."""
        self._text.append(text)
        self._waiting += len(text)
        while self._waiting >= self._shard_sentences:
            self._write(self._shard_sentences)

    def close(self) -> dict[str, int]:
        """Write the remaining sentences (a store has at least one shard) and return the counts of the whole store."""
        if self._waiting or not self._shards:
            self._write(self._waiting)
        return self._counts

    def _write(self, length: int) -> None:
        joined = pa.chunked_array(self._text, pa.string())
        now, self._text, self._waiting = joined.slice(0, length), joined.slice(length).chunks, self._waiting - length
        starts = range(0, max(length, 1), _CHUNK)
        parts = [self._encoder.encode(now.slice(start, _CHUNK).to_pylist()) for start in starts]
        ids, stored, full = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        offsets = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
        # 32-bit offsets if they are large enough for the number of tokens.
        small = len(ids) <= _INT32_MAX
        rows = (pa.ListArray if small else pa.LargeListArray).from_arrays(
            pa.array(offsets, pa.int32() if small else pa.int64()), pa.array(ids, pa.int32())
        )
        write_arrow({"ids": rows, "length": pa.array(full, pa.int32())}, self._folder / f"{self._shards:05d}.arrow")
        self._shards += 1
        self._counts["sentences"] += length
        self._counts["tokens"] += len(ids)
        self._counts["truncated"] += int((full > self._encoder.max_length).sum())
        self._counts["longest"] = max(self._counts["longest"], int(full.max(initial=0)))


def _label_codes(batch: pa.RecordBatch, column: str) -> pa.Array:
    """(n,) int8 positions in `LABELS`; `MISSING` for null, or for all rows if there is no such column."""
    if column not in batch.schema.names:
        return pa.array(np.full(batch.num_rows, MISSING, dtype=np.int8))
    codes = pc.index_in(batch[column].cast(pa.string()), value_set=pa.array(LABELS, pa.string()))
    return pc.fill_null(codes, MISSING).cast(pa.int8())
