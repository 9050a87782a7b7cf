"""Encode one part of a Parquet corpus (see `bulk_plan`): read, encode and write some thousand rows at a time.

Memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

from pipeline.data.cleaning import is_empty
from pipeline.data.text_column import as_text, not_utf8
from pipeline.distributed.precision import has_bf16
from pipeline.identity.digests import library_versions
from pipeline.inference.bulk_plan import LOG_VAR, MANIFEST, MEAN, ROW, TOKENS, Done, Part, Plan, check_plan, unreadable
from pipeline.models.model_dir import ENGINE_PACKAGES
from pipeline.storage.filesystem import Place, parquet_file
from pipeline.utils.atomic_io import json_text, room_for, sha256_file
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.gaussian.tokens import TokenVectors
    from pipeline.models.encoder import GaussianEncoder

# The most rows encoded at a time, and about the most bytes of text; the memory of the tokenizer grows with them.
BATCH_ROWS, BATCH_BYTES = 8_192, 4_000_000


def encode_part(encoder: GaussianEncoder, source: str, plan: Plan, part: Part, out: str) -> Done:
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
            numbers = [pa.field(MEAN, vectors), pa.field(LOG_VAR, vectors)]
            if plan.tokens:
                assert encoder.relation_head is not None
                numbers.append(pa.field(TOKENS, pa.list_(pa.list_(pa.int8(), encoder.relation_head.projection.out_features))))
            schema = pa.schema([pa.field(ROW, pa.int64()), *kept, *numbers])
            # A dictionary only for the kept columns: the floats of a trained model hardly ever repeat.
            keep: Any = list(plan.keep)
            read = list(dict.fromkeys((plan.column, *plan.keep)))
            with room_for(file), pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=keep) as writer:
                for batch in _batches(corpus, part, read):
                    column = as_text(batch.column(plan.column))
                    if (bad := not_utf8(column)) is not None:
                        raise UserError(f"{path}: column {plan.column!r} is not valid UTF-8 in row {part.first_row + rows + bad}")
                    texts: list[str | None] = column.to_pylist()
                    present = {row: text for row, text in enumerate(texts) if text is not None and not is_empty(text)}
                    encoded, reading = encoder.encode_counted(list(present.values()), bf16=bf16)
                    positions = np.fromiter(present, np.int64)
                    columns = [pa.array(part.first_row + rows + positions)]
                    columns += [_kept(batch.column(name)).take(positions) for name in plan.keep]
                    columns += [_lists(numbers) for numbers in (encoded.mean, encoded.log_var)]
                    if plan.tokens:
                        columns.append(_token_lists(encoded.tokens, schema.field(TOKENS).type))
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                    cut += int(reading.cut.sum())
                    rows += len(texts)
                    missing += texts.count(None)
                    empty += len(texts) - texts.count(None) - len(present)
        except (ArrowException, OSError) as error:
            raise unreadable(fs, path, error) from None
        if rows != part.rows:
            raise UserError(f"{path}: has fewer rows than when the run began; encode into a new folder")
        versions = library_versions(*(ENGINE_PACKAGES if encoder.compiled else ()))
        result = Done(part.number, rows, missing, empty, cut, sha256_file(file), plan.key(part), versions)
        check_plan(place, plan)
        # Nobody reads the folder before it is whole again, and the record of another plan does not vouch for this file.
        place.remove(MANIFEST)
        place.remove(part.record)
        place.send(file, part.name)
    place.write(part.record, json_text(asdict(result)))
    return result


def _lists(numbers: Tensor) -> pa.Array:
    """(n, d) as n fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.numpy().reshape(-1)), numbers.shape[1])


def _token_lists(tokens: TokenVectors | None, kind: pa.DataType) -> pa.Array:
    """A list of vectors for each sentence; of no sentences, an encoder gives no token vectors."""
    if tokens is None:
        return pa.array([], kind)
    ends = np.concatenate(([0], tokens.length.cumsum(0).numpy())).astype(np.int32)
    return pa.ListArray.from_arrays(ends, _lists(tokens.packed().table))


def _kept(values: pa.Array) -> pa.Array:
    """The values of a kept column; pyarrow cannot pick rows of a string view."""
    return as_text(values) if pa.types.is_string_view(values.type) else values


def _batches(corpus: pq.ParquetFile, part: Part, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the part, some thousand at a time, out of the row groups that hold some of them."""
    about = [corpus.metadata.row_group(group) for group in range(corpus.num_row_groups)]
    ends = np.cumsum([group.num_rows for group in about])
    first, last = np.searchsorted(ends, [part.start, part.start + part.rows - 1], side="right").tolist()
    groups = list(range(first, min(last + 1, len(ends))))
    skip, remaining = part.start - (int(ends[first - 1]) if first else 0), part.rows
    size, count = (sum(getattr(about[group], name) for group in groups) for name in ("total_byte_size", "num_rows"))
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * count // max(size, 1)))
    for batch in corpus.iter_batches(rows, row_groups=groups, columns=columns):
        piece = batch.slice(skip, remaining)
        skip, remaining = max(0, skip - len(batch)), remaining - len(piece)
        if len(piece):
            yield piece
        if not remaining:
            return
