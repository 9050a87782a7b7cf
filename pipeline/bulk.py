"""A Parquet corpus of any size as Gaussians: how it is cut into parts, what one part's file holds, and the manifest.

Each part is some row groups of one file of the corpus, or a piece of a large one, and becomes one file, `part-NNNNNN.parquet`,
which is there whole or not at all. A run that was broken off goes on with the parts that are missing: `_plan.json`, written
first, says what all of them are, and `_part-NNNNNN.json`, written after its file, that one is done. One part is read, encoded and
written some thousand rows at a time, so that memory does not grow with the corpus. (Programs that read a folder of Parquet pass
over names that begin with `_`.)

Columns of a part: `row`, counted from the corpus's first; those of the corpus that were asked for; `mean` and `log_var`,
fixed-size lists of D float32. A row without text has no Gaussian and is left out; the manifest says how many those are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyarrow.fs import FileSystem, LocalFileSystem

from pipeline.errors import UserError
from pipeline.files import json_text, room_for, sha256_file, sha256_json
from pipeline.identity import VECTORS, code_digest, library_versions, other_versions
from pipeline.place import Place, first_line, parquet_file, parquet_files, storage_error

if TYPE_CHECKING:
    from pipeline.encoder import GaussianEncoder

FORMAT = "gausscse-gaussians-1"
PLAN, MANIFEST = "_plan.json", "_manifest.json"
ROW, MEAN, LOG_VAR = "row", "mean", "log_var"
# Of a part at most: 100 MB of 768 dimensions, and what a run that is broken off does anew. Of what is encoded at a time at most,
# which bounds memory.
PART_ROWS, BATCH_ROWS = 16_384, 8_192
# What a batch of sentences has at most, and one of documents at a time.
BATCH_CHARACTERS = 4_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups of one file of the corpus, or a piece of one."""

    number: int
    file: str
    """Below the corpus's folder."""
    first_group: int
    groups: int
    skip: int
    """Rows of the group before the piece."""
    first_row: int
    """Of the corpus."""
    rows: int

    @property
    def name(self) -> str:
        return f"part-{self.number:06d}.parquet"

    @property
    def record(self) -> str:
        return f"_part-{self.number:06d}.json"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a part."""

    number: int
    rows: int
    """Of the corpus."""
    missing: int
    """Of them without text (null), which have no Gaussian."""
    empty: int
    cut: int
    """Rows that were longer than the model reads."""
    sha256: str
    """Of the part's file."""
    versions: dict[str, str] | None = None
    """`library_versions` where it was encoded; None where an older run did not record them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is encoded by what: two runs with equal plans make equal files."""

    column: str
    keep: tuple[str, ...]
    model: str
    """`content_digest` of the encoder's folder."""
    dim: int
    corpus: str
    """SHA-256 over names, sizes and footers of the corpus's files."""
    parts: tuple[Part, ...]
    code: str
    """Digest of the code that encodes."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def digest(self) -> str:
        """Of everything that decides what the parts hold."""
        return sha256_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """As `_plan.json` has it, but for the digest."""
        return {"format": FORMAT, **asdict(self), "keep": list(self.keep), "parts": [asdict(part) for part in self.parts]}


def planned(source: str, column: str, keep: Sequence[str], model: str, dim: int, part_rows: int = PART_ROWS) -> Plan:
    """Look at the corpus, and cut it into parts; reads footers only.

    Raises:
        UserError: there is none, a file cannot be read or lacks a column, or the column is no text.
    """
    fs, files = parquet_files(source)
    seen = sha256()
    parts: list[Part] = []
    first_row = 0
    kept: list[pa.Field] = []
    for name, path in files.items():
        try:
            with fs.open_input_file(path) as file:
                size = file.size()
                file.seek(max(0, size - 8))
                footer = int.from_bytes(file.read(4), "little") + 8
                file.seek(max(0, size - footer))
                seen.update(f"{name}\0{size}\0".encode() + sha256(file.read()).digest())
            about = pq.ParquetFile(path, filesystem=fs)
        except (ArrowException, OSError) as error:
            raise _unreadable(fs, path, error, " as Parquet") from None
        _check_columns(path, about.schema_arrow, column, keep)
        here = [about.schema_arrow.field(one).remove_metadata() for one in keep]
        kept = kept or here
        for one, other in zip(here, kept, strict=True):
            if one != other:
                raise UserError(f"{path}: column {one.name!r} is {_kind(one)}, in other files of the corpus {_kind(other)}")
        groups = [about.metadata.row_group(group).num_rows for group in range(about.metadata.num_row_groups)]
        for first, count, skip, rows in _cut(groups, part_rows):
            parts.append(Part(len(parts), name, first, count, skip, first_row, rows))
            first_row += rows
    return Plan(column, tuple(keep), model, dim, seen.hexdigest(), tuple(parts), code_digest(VECTORS))


def _cut(groups: Sequence[int], most: int) -> Iterator[tuple[int, int, int, int]]:
    """Parts of a file by the rows of its groups: whole groups as far as they fit, a larger one in pieces of about equal size.

    Yields:
        The first group, how many, rows to pass over, rows.
    """
    first = rows = 0
    for group, size in enumerate(groups):
        if rows and rows + size > most:
            yield first, group - first, 0, rows
            first, rows = group, 0
        if size > most:
            pieces = -(-size // most)
            for start, end in pairwise(size * piece // pieces for piece in range(pieces + 1)):
                yield group, 1, start, end - start
            first = group + 1
        else:
            rows += size
    if rows:
        yield first, len(groups) - first, 0, rows


def _kind(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _check_columns(path: str, schema: pa.Schema, column: str, keep: Sequence[str]) -> None:
    for name in (column, *keep):
        if name not in schema.names:
            raise UserError(f"{path}: has no column {name!r}; there are {', '.join(schema.names)}")
    if not (pa.types.is_string(kind := schema.field(column).type) or pa.types.is_large_string(kind)):
        raise UserError(f"{path}: column {column!r} is {kind}, not text")
    if len(set(keep)) < len(keep):
        raise UserError(f"columns to keep are named twice: {', '.join(keep)}")
    if taken := {ROW, MEAN, LOG_VAR} & set(keep):
        raise UserError(f"column {min(taken)!r} cannot be kept: what is written has another of that name")


def begin(plan: Plan, out: str) -> list[Done]:
    """Make `out` the place of a plan; what earlier runs of it have done.

    One line on stderr says so where parts that are done were encoded with other library versions.

    Raises:
        UserError: it is the place of another plan, or there are other files in it.
    """
    place = Place.open(out, Path.cwd())
    names, text = place.names(), place.read(PLAN)
    if text is None:
        if names:
            raise UserError(f"{place.name}: {min(names)} is in it already; name a new folder")
        place.write(PLAN, json_text({"digest": plan.digest, **plan.to_json()}))
        return []
    held, ours = json.loads(text), plan.to_json()
    if held.get("digest") != plan.digest:
        other = [name for name in ours if held.get(name) != ours[name]]
        raise UserError(f"{place.name}: holds Gaussians made otherwise (what differs: {', '.join(other)}); name a new folder")
    done: list[Done] = []
    for part in plan.parts:
        record = place.read(part.record) if {part.name, part.record} <= names else None
        if record is not None:
            done.append(Done(**json.loads(record)))
    if others := other_versions(one.versions for one in done):
        print(f"warning: parts that are reused were encoded with {others}", file=sys.stderr)
    return done


def encode_part(encoder: GaussianEncoder, source: str, plan: Plan, part: Part, out: str, batch_rows: int = BATCH_ROWS) -> Done:
    """Encode one part and put its file below `out`, whole or not at all.

    Raises:
        UserError: the corpus cannot be read any more, or the file cannot be written.
    """
    fs, path = parquet_file(source, part.file)
    place = Place.open(out, Path.cwd())
    missing = empty = cut = rows = 0
    with TemporaryDirectory(prefix="gausscse-") as folder:
        file = Path(folder) / part.name
        try:
            corpus = pq.ParquetFile(path, filesystem=fs)
            kept = [corpus.schema_arrow.field(name) for name in plan.keep]
            vectors = pa.list_(pa.float32(), plan.dim)
            schema = pa.schema([pa.field(ROW, pa.int64()), *kept, pa.field(MEAN, vectors), pa.field(LOG_VAR, vectors)])
            # Floats of a trained model hardly repeat: a dictionary of them would be built for nothing.
            keep: Any = list(plan.keep)
            groups = list(range(part.first_group, part.first_group + part.groups))
            read = list(dict.fromkeys((plan.column, *plan.keep)))
            with (
                room_for(file),
                pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=keep) as writer,
            ):
                for batch in _ahead(_piece(corpus.iter_batches(batch_rows, row_groups=groups, columns=read), part)):
                    texts: list[str | None] = batch.column(plan.column).to_pylist()
                    there = np.flatnonzero([text is not None for text in texts])
                    at = 0
                    for some in _portions([text for text in texts if text is not None]):
                        encoded, unusual = encoder.encode_counted(some)
                        those = there[at : at + len(some)]
                        columns = [pa.array(part.first_row + rows + those)]
                        columns += [batch.column(name).take(those) for name in plan.keep]
                        columns += [_vectors(numbers.numpy()) for numbers in (encoded.mean, encoded.log_var)]
                        writer.write_batch(pa.record_batch(columns, schema=schema))
                        at += len(some)
                        empty, cut = empty + unusual.empty, cut + unusual.cut
                    rows += len(texts)
                    missing += len(texts) - len(there)
        except (ArrowException, OSError) as error:
            raise _unreadable(fs, path, error) from None
        if rows != part.rows:
            raise UserError(f"{path}: has fewer rows than when the run began; encode into a new folder")
        done = Done(part.number, rows, missing, empty, cut, sha256_file(file), library_versions())
        place.send(file, part.name)
    place.write(part.record, json_text(asdict(done)))
    return done


def finish(plan: Plan, out: str, done: Sequence[Done]) -> dict[str, Any]:
    """Write the manifest: what there is in which file, made of what by what."""
    by_number = sorted(done, key=lambda one: one.number)
    parts = [
        {
            "file": part.name,
            "source": part.file,
            **{name: getattr(part, name) for name in ("first_group", "groups", "skip")},
            **asdict(one),
        }
        for part, one in zip(plan.parts, by_number, strict=True)
    ]
    totals = {name: sum(getattr(one, name) for one in by_number) for name in ("rows", "missing", "empty", "cut")}
    about = {name: value for name, value in plan.to_json().items() if name != "parts"}
    manifest = {**about, **totals, "plan": plan.digest, "parts": parts}
    Place.open(out, Path.cwd()).write(MANIFEST, json_text(manifest))
    return manifest


def _unreadable(fs: FileSystem, path: str, error: Exception, how: str = "") -> UserError:
    """What is wrong with a file of the corpus, or with its storage."""
    if isinstance(error, OSError) and not isinstance(fs, LocalFileSystem):
        return storage_error(path, error)
    return UserError(f"{path}: cannot be read{how} ({first_line(error)})")


def _piece(batches: Iterable[pa.RecordBatch], part: Part) -> Iterator[pa.RecordBatch]:
    """Those rows of its groups that are the part's."""
    skip, left = part.skip, part.rows
    for batch in batches:
        there = batch.slice(skip, left)
        skip, left = max(0, skip - len(batch)), left - len(there)
        if len(there):
            yield there
        if not left:
            return


def _portions(texts: list[str]) -> Iterator[list[str]]:
    """The texts in turn, as many at a time as have `BATCH_CHARACTERS`, at least one: a tokenizer's lists grow with them."""
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


def _vectors(numbers: npt.NDArray[np.float32]) -> pa.FixedSizeListArray:
    """(m, D) as a column of m lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])


def _ahead(source: Iterable[T]) -> Iterator[T]:
    """What an iterator gives, the next of it fetched while this one is worked on."""
    iterator, end = iter(source), object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, iterator, end)
            yield item  # type: ignore[misc]
