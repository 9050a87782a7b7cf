"""The parts of a Parquet corpus that is encoded as Gaussians, and the folder of its output: begin, resume, update, finish.

A part is a run of rows of one file of the corpus. Its output is one file, `part-NNNNNN.parquet`, written completely or not at
all. `_plan.json`, written first, lists all parts. `_part-NNNNNN.json` is written after the file of its part and marks the part as
done. An interrupted run continues with the missing parts.
(Programs that read a folder of Parquet files skip names that begin with `_`.)

A later run with another model or a changed corpus may update the folder. It encodes again each part that differs. From its first
change to a part until its end the folder has no manifest, so nothing reads a mixture. Only one run may write into a folder at a
time; an older one that is still going on ends with an error.

Columns of a part: `row`, the row number in the corpus, from 0; the columns of the corpus to keep; `mean` and `log_var`,
fixed-size lists of D float32; if asked for, `token_vectors`, a list of d int8 for each token. Rows without text, or with nothing
but white space, have no Gaussian and are left out; the manifest gives their numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyarrow.fs import FileSystem, LocalFileSystem

from pipeline.data.text_column import is_text
from pipeline.identity.digests import VECTORS, code_digest, other_versions
from pipeline.storage.filesystem import Place, parquet_files, storage_error
from pipeline.storage.object_store import at_once
from pipeline.utils.atomic_io import json_text, sha256_json
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import START, other_kind
from pipeline.utils.logs import log

FORMAT = "gausscse-gaussians-1"
PLAN, MANIFEST = "_plan.json", "_manifest.json"
ROW, MEAN, LOG_VAR, TOKENS = "row", "mean", "log_var", "token_vectors"
# A column of the results of a search (pipeline/serving/corpora.py).
SCORE = "score"
# Names of the files of parts.
_OF_PART = re.compile(r"part-\d{6,}\.parquet|_part-\d{6,}\.json")
# The most rows of a part: 100 MB at 768 dimensions, and the most work that an interrupted run repeats for one part.
PART_ROWS = 16_384
_NOT_PARQUET = "not Parquet; write it as Parquet, with DuckDB or pandas for example"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one file of the corpus."""

    number: int
    file: str
    """Path relative to the folder of the corpus."""
    start: int
    """Number of the part's first row in the file."""
    first_row: int
    """Number of the part's first row in the corpus."""
    rows: int
    footer: str
    """SHA-256 over the name, the size and the footer of the file."""

    @property
    def name(self) -> str:
        return f"part-{self.number:06d}.parquet"

    @property
    def record(self) -> str:
        return f"_part-{self.number:06d}.json"


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a part."""

    number: int
    rows: int
    """Rows of the corpus in this part."""
    missing: int
    """Rows without text (null), which have no Gaussian."""
    empty: int
    """Rows with nothing but white space, which have no Gaussian either."""
    cut: int
    """Rows longer than the model's limit, which were cut."""
    sha256: str
    """Of the part's file."""
    key: str
    """`Plan.key` of the part."""
    versions: dict[str, str]
    """`library_versions` that encoded the part."""


@dataclass(frozen=True)
class Plan:
    """The corpus, the model and the code of a run. Two runs with equal plans write equal files."""

    column: str
    keep: tuple[str, ...]
    model: str
    """`embeddings_digest` of the encoder."""
    dim: int
    parts: tuple[Part, ...]
    code: str
    """Digest of the encoding code."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the products. The output is float32."""
    tokens: str | None = None
    """`TokenProjection.digest` of the projection that makes the token vectors; None without them."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides the content of the parts."""
        return sha256_json(self.to_json())

    def for_a_task(self) -> Plan:
        """The plan without its parts, of which there may be many thousands; it keeps its digest."""
        light = replace(self, parts=())
        light.__dict__["digest"] = self.digest
        return light

    def key(self, part: Part) -> str:
        """Digest of everything that decides the content of one part."""
        return sha256_json({**self.common(), **asdict(part)})

    def common(self) -> dict[str, Any]:
        """The values that decide the content of every part."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "parts"}
        return {"format": FORMAT, **values, "keep": list(self.keep)}

    def to_json(self) -> dict[str, Any]:
        """The content of `_plan.json` without the digest."""
        return {**self.common(), "parts": [asdict(part) for part in self.parts]}


def planned(
    source: str,
    column: str,
    keep: Sequence[str],
    model: str,
    dim: int,
    part_rows: int = PART_ROWS,
    precision: Literal["fp32", "bf16"] = "fp32",
    tokens: str | None = None,
) -> Plan:
    """Read the footers of the corpus, nothing else, and divide it into parts.

    Raises:
        UserError: there is no corpus, a file is not Parquet, cannot be read or lacks a column, `column` is not text, files differ
            in a kept column, or a column cannot be kept.
    """
    fs, files = parquet_files(source)
    parts: list[Part] = []
    first_row = 0
    expected_fields: list[pa.Field] = []
    for name, path in files.items():
        try:
            with fs.open_input_file(path) as file:
                start, size = file.read(START), file.size()
                if not start.startswith(b"PAR1"):
                    raise UserError(f"{path}: is {other_kind(start) or _NOT_PARQUET}")
                file.seek(max(0, size - 8))
                footer = int.from_bytes(file.read(4), "little") + 8
                file.seek(max(0, size - footer))
                digest = sha256(f"{name}\0{size}\0".encode() + file.read()).hexdigest()
            parquet = pq.ParquetFile(path, filesystem=fs)
        except (ArrowException, OSError) as error:
            raise unreadable(fs, path, error, " as Parquet") from None
        _check_columns(path, parquet.schema_arrow, column, keep)
        fields = [parquet.schema_arrow.field(name).remove_metadata() for name in keep]
        expected_fields = expected_fields or fields
        for field, expected in zip(fields, expected_fields, strict=True):
            if field != expected:
                raise UserError(
                    f"{path}: column {field.name!r} is {_kind(field)}, in other files of the corpus {_kind(expected)}"
                )
        rows = parquet.metadata.num_rows
        for start in range(0, rows, part_rows):
            parts.append(Part(len(parts), name, start, first_row + start, min(part_rows, rows - start), digest))
        first_row += rows
    return Plan(column, tuple(keep), model, dim, tuple(parts), code_digest(VECTORS), precision, tokens)


def _kind(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _check_columns(path: str, schema: pa.Schema, column: str, keep: Sequence[str]) -> None:
    for name in (column, *keep):
        if name not in schema.names:
            raise UserError(f"{path}: has no column {name!r}; there are {', '.join(schema.names)}")
        if schema.names.count(name) > 1:
            raise UserError(f"{path}: has column {name!r} twice; rename one")
    if not is_text(kind := schema.field(column).type):
        raise UserError(f"{path}: column {column!r} is {kind}, not text; name a column of text with --column")
    if len(set(keep)) < len(keep):
        raise UserError(f"columns to keep are named twice: {', '.join(keep)}")
    if taken := {ROW, MEAN, LOG_VAR, TOKENS, SCORE} & set(keep):
        raise UserError(f"column {min(taken)!r} cannot be kept: the output or results of a search have a column of that name")


def begin(plan: Plan, out: str, *, update: bool = False) -> list[Done]:
    """Start a plan in the folder `out`, or resume it; return the parts that earlier runs have finished.

    Prints one line on stderr if finished parts were encoded with other library versions.

    Args:
        update: whether `out` may hold the output of another plan. The parts that both have in common count as finished.

    Raises:
        UserError: `out` belongs to another plan and is not to be updated, or contains other files.
    """
    place = Place.open(out, Path.cwd())
    names, recorded, current = place.names(), _object(place, PLAN), plan.to_json()
    if recorded is None and names:
        raise UserError(f"{place.name}: {min(names)} is in this folder already; name a new folder")
    if recorded == {} and not update:
        raise UserError(f"{place.name}/{PLAN}: is damaged; add --update, which encodes again what does not fit")
    if recorded is None or recorded.get("digest") != plan.digest:
        if recorded and not update:
            different = ", ".join(name for name in current if recorded.get(name) != current[name])
            raise UserError(
                f"{place.name}: holds Gaussians of another run (different: {different}); name a new folder, "
                "or have the parts that differ encoded again with --update"
            )
        place.write(PLAN, json_text({"digest": plan.digest, **current}))

    def earlier(part: Part) -> Done | None:
        record = _object(place, part.record) if {part.name, part.record} <= names else None
        if not record or record.get("key") != plan.key(part):
            return None
        done = Done(**record)
        # Two runs at once may have left the record of one and the file of the other.
        same = not update or sha256(place.read_bytes(part.name) or b"").hexdigest() == done.sha256
        return done if same else None

    # With an update, whole files are read, which are large.
    found = map(earlier, plan.parts) if update else at_once(earlier, plan.parts)
    finished: list[Done] = [done for done in found if done is not None]
    if others := other_versions(result.versions for result in finished):
        log.warning(f"parts that are reused were encoded with {others}")
    return finished


def finish(plan: Plan, out: str, done: Sequence[Done]) -> dict[str, Any]:
    """Remove parts that the plan lacks; write and return the manifest: the files, what each contains, the model and the code.

    Raises:
        UserError: another run has begun to write into the folder.
    """
    by_number = sorted(done, key=lambda result: result.number)
    parts = [
        {"file": part.name, "source": part.file, "start": part.start, **asdict(result)}
        for part, result in zip(plan.parts, by_number, strict=True)
    ]
    totals = {name: sum(getattr(result, name) for result in by_number) for name in ("rows", "missing", "empty", "cut")}
    manifest = {**plan.common(), **totals, "plan": plan.digest, "parts": parts}
    place = Place.open(out, Path.cwd())
    check_plan(place, plan)
    expected = {name for part in plan.parts for name in (part.name, part.record)}
    if surplus := {name for name in place.names() if _OF_PART.fullmatch(name)} - expected:
        place.remove(MANIFEST)
        for name in surplus:
            place.remove(name)
    place.write(MANIFEST, json_text(manifest))
    return manifest


def check_plan(place: Place, plan: Plan) -> None:
    """Check that the folder still belongs to this plan.

    Raises:
        UserError: another run has begun to write into it.
    """
    # Each part asks, so only the beginning is read, where the digest is unless the names of columns are very long.
    start = place.read_bytes(PLAN, most=10_000) or b""
    if f'"digest": "{plan.digest}"'.encode() not in start and (_object(place, PLAN) or {}).get("digest") != plan.digest:
        raise UserError(f"{place.name}: another run has begun to write into this folder, so this one ends")


def _object(place: Place, name: str) -> dict[str, Any] | None:
    """The JSON object in a file; None without the file, and {} for a file that was cut, for example by a power failure."""
    try:
        if (text := place.read(name)) is None:
            return None
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def unreadable(fs: FileSystem, path: str, error: Exception, how: str = "") -> UserError:
    """The error for an unreadable file of the corpus or its storage."""
    if isinstance(error, OSError) and not isinstance(fs, LocalFileSystem):
        return storage_error(path, error)
    remedy = "; write a fixed-size list with nulls as a list, or do not keep it" if "Expected all lists" in str(error) else ""
    return UserError(f"{path}: cannot be read{how} ({first_line(error)}){remedy}")
