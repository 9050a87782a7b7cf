"""Encode one part of a Parquet corpus (see `bulk_plan`): read, encode and write some thousand rows at a time.

Memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

from pipeline.data.cleaning import is_empty
from pipeline.data.text_column import as_text, not_utf8
from pipeline.distributed.precision import has_bf16
from pipeline.identity.digests import library_versions
from pipeline.inference.bulk_plan import LOG_VAR, MANIFEST, MEAN, ROW, Done, Part, Plan, check_plan, unreadable
from pipeline.storage.filesystem import Place, parquet_file
from pipeline.utils.atomic_io import json_text, room_for, sha256_file
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder

# The most rows encoded at a time, which limits memory.
BATCH_ROWS = 8_192
# The most characters encoded at a time, unless a single document is longer.
BATCH_CHARACTERS = 4_000_000
T = TypeVar("T")


def encode_part(encoder: GaussianEncoder, source: str, plan: Plan, part: Part, out: str, batch_rows: int = BATCH_ROWS) -> Done:
    """Encode one part and write its file into `out`, completely or not at all.

    Raises:
        UserError: the corpus can no longer be read or has fewer rows than planned, the file cannot be written, another run has
            begun to write into the folder, or the encoder's device has no instructions for the plan's precision.
    """
    bf16 = plan.precision == "bf16"
    if bf16 and not has_bf16(device := encoder.mean_head.weight.device):
        raise UserError(f"{gethostname()}: its {device.type} has no bf16 instructions; encode without --bf16")
    fs, path = parquet_file(source, part.file)
    place = Place.open(out, Path.cwd())
    missing = empty = cut = rows = 0
    with TemporaryDirectory(prefix="gausscse-") as folder:
        file = Path(folder) / part.name
        try:
            corpus = pq.ParquetFile(path, filesystem=fs)
            fields = [corpus.schema_arrow.field(name) for name in plan.keep]
            kept = [field.with_type(pa.large_string()) if pa.types.is_string_view(field.type) else field for field in fields]
            vectors = pa.list_(pa.float32(), plan.dim)
            schema = pa.schema([pa.field(ROW, pa.int64()), *kept, pa.field(MEAN, vectors), pa.field(LOG_VAR, vectors)])
            # A dictionary only for the kept columns: the floats of a trained model hardly ever repeat.
            keep: Any = list(plan.keep)
            groups = list(range(part.first_group, part.first_group + part.groups))
            read = list(dict.fromkeys((plan.column, *plan.keep)))
            with (
                room_for(file),
                pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=keep) as writer,
            ):
                for batch in _ahead(_piece(corpus.iter_batches(batch_rows, row_groups=groups, columns=read), part)):
                    column = as_text(batch.column(plan.column))
                    if (bad := not_utf8(column)) is not None:
                        raise UserError(f"{path}: column {plan.column!r} is not valid UTF-8 in row {part.first_row + rows + bad}")
                    texts: list[str | None] = column.to_pylist()
                    present = {row: text for row, text in enumerate(texts) if text is not None and not is_empty(text)}
                    present_rows = np.fromiter(present, np.int64)
                    start = 0
                    for portion in _portions(list(present.values())):
                        encoded, longer = encoder.encode_counted(portion, bf16=bf16)
                        positions = present_rows[start : start + len(portion)]
                        columns = [pa.array(part.first_row + rows + positions)]
                        columns += [_kept(batch.column(name)).take(positions) for name in plan.keep]
                        for numbers in (encoded.mean, encoded.log_var):
                            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(numbers.numpy().reshape(-1)), plan.dim))
                        writer.write_batch(pa.record_batch(columns, schema=schema))
                        start += len(portion)
                        cut += longer
                    rows += len(texts)
                    missing += texts.count(None)
                    empty += len(texts) - texts.count(None) - len(present)
        except (ArrowException, OSError) as error:
            raise unreadable(fs, path, error) from None
        if rows != part.rows:
            raise UserError(f"{path}: has fewer rows than when the run began; encode into a new folder")
        result = Done(part.number, rows, missing, empty, cut, sha256_file(file), plan.key(part), library_versions())
        check_plan(place, plan)
        # Nobody reads the folder before it is whole again, and the record of another plan does not vouch for this file.
        place.remove(MANIFEST)
        place.remove(part.record)
        place.send(file, part.name)
    place.write(part.record, json_text(asdict(result)))
    return result


def _kept(values: pa.Array) -> pa.Array:
    """The values of a kept column; pyarrow cannot pick rows of a string view."""
    return as_text(values) if pa.types.is_string_view(values.type) else values


def _piece(batches: Iterable[pa.RecordBatch], part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of the part, out of all rows of its row groups."""
    skip, remaining = part.skip, part.rows
    for batch in batches:
        piece = batch.slice(skip, remaining)
        skip, remaining = max(0, skip - len(batch)), remaining - len(piece)
        if len(piece):
            yield piece
        if not remaining:
            return


def _portions(texts: list[str]) -> Iterator[list[str]]:
    """The texts in lists of at most `BATCH_CHARACTERS` characters or of one text, because tokenizer memory grows with them."""
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and size + len(text) > BATCH_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    if portion:
        yield portion


def _ahead(source: Iterable[T]) -> Iterator[T]:
    """The items of an iterator; the next item is fetched while the caller works on this one."""
    iterator, end = iter(source), object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]
