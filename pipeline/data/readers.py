"""Sources of sentence pairs, one reader each, all giving the same rows: stripped text and label codes.

Everything wrong with an input file is a `UserError` naming the file and, where there is one, the row (the first is 1).
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.generated import generate
from pipeline.data.schema import LABELS, NO_LABEL
from pipeline.errors import UserError
from pipeline.params import FileSpec, StsSpec

GENERATED = "generated"
_CODES = {name: code for code, name in enumerate(LABELS)} | {"": NO_LABEL, "-": NO_LABEL}
_CHUNK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRows:
    """n rows of one source, in its order, nothing dropped yet."""

    name: str
    """The path as params.yaml has it, or `generated`; names the rows in messages and counts."""
    premise: pa.ChunkedArray
    """(n,) large_string, stripped; null became ''."""
    hypothesis: pa.ChunkedArray
    """(n,) as `premise`."""
    label: npt.NDArray[np.int8]
    """(n,) position in `LABELS`, or `NO_LABEL`."""
    source: pa.ChunkedArray
    """(n,) large_string: where each row comes from."""
    reverse_label: npt.NDArray[np.int8] | None = None
    """(n,) label of the pair read the other way round; None if the source does not have it."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class StsRows:
    """n rows of one graded similarity set, nothing dropped yet."""

    name: str
    sentence1: pa.ChunkedArray
    """(n,) large_string, stripped; null became ''."""
    sentence2: pa.ChunkedArray
    score: npt.NDArray[np.float64]
    """(n,) NaN where there is none."""
    source: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.score)


def read_generated(split: Literal["train", "dev", "test"], pairs: int, seed: int) -> PairRows:
    """Pairs of the generated source."""
    chunks = [tuple(zip(*rows, strict=True)) for rows in _batched(generate(split, pairs, seed), _CHUNK)]
    premise, hypothesis, label = (
        pa.chunked_array([pa.array(chunk[i], pa.large_string()) for chunk in chunks], pa.large_string()) for i in range(3)
    )
    return PairRows(
        name=GENERATED,
        premise=premise,
        hypothesis=hypothesis,
        label=_label_codes(label, f"generated {split}", "label"),
        source=_constant(GENERATED, len(label)),
    )


def read_pairs(root: Path, spec: FileSpec) -> PairRows:
    """Pairs of the Parquet file `spec.path` under `root`.

    Labels are `LABELS` in any case; null, '' and '-' mean no gold label. `source` is the file's stem, followed by
    `:value` where the file has a string column `source`.

    Raises:
        UserError: the file escapes `root`, is missing or unreadable, lacks a column, or holds a bad value.
    """
    table = _read_table(root, spec.path, [spec.premise, spec.hypothesis, spec.label], spec.reverse_label)
    return PairRows(
        name=spec.path,
        premise=_text(table, spec.premise, spec.path),
        hypothesis=_text(table, spec.hypothesis, spec.path),
        label=_label_codes(_strings(table, spec.label, spec.path), spec.path, spec.label),
        source=_source(table, spec.path),
        reverse_label=None
        if spec.reverse_label is None
        else _label_codes(_strings(table, spec.reverse_label, spec.path), spec.path, spec.reverse_label),
    )


def read_sts(root: Path, spec: StsSpec) -> StsRows:
    """Graded pairs of the Parquet file `spec.path` under `root`; `UserError` as `read_pairs`."""
    table = _read_table(root, spec.path, [spec.sentence1, spec.sentence2, spec.score])
    score = table[spec.score]
    if not (pa.types.is_floating(score.type) or pa.types.is_integer(score.type)):
        raise UserError(f"{spec.path}: column {spec.score!r} holds {score.type}, not numbers; convert it to a number column")
    return StsRows(
        name=spec.path,
        sentence1=_text(table, spec.sentence1, spec.path),
        sentence2=_text(table, spec.sentence2, spec.path),
        score=pc.fill_null(score.cast(pa.float64()), float("nan")).to_numpy(),
        source=_source(table, spec.path),
    )


def _resolve(root: Path, path: str) -> Path:
    # By name, not by resolving links: DVC may link data files into a cache that lies elsewhere.
    base = os.path.abspath(root)  # noqa: PTH100
    full = os.path.normpath(Path(base) / path)
    if os.path.commonpath([base, full]) != base:
        raise UserError(f"{path}: lies outside data.root ({root}); move the file there or set data.root to a folder above it")
    if not Path(base).is_dir():
        raise UserError(f"data.root: {root} is not a folder; set it to the folder that holds the files of data.files")
    return Path(full)


def _read_table(root: Path, path: str, required: list[str], optional: str | None = None) -> pa.Table:
    """The named columns and, where there is one, `source`; nothing else is read."""
    wanted = required if optional is None else [*required, optional]
    full = _resolve(root, path)
    if not full.is_file():
        raise UserError(f"{path}: no such file under data.root ({root}); correct the path or put the file there")
    try:
        with pq.ParquetFile(full, memory_map=True) as file:
            names = file.schema_arrow.names
            for name in wanted:
                if names.count(name) != 1:
                    fault = "no column" if name not in names else "more than one column"
                    raise UserError(f"{path}: {fault} {name!r}; it has {', '.join(names)}: set the column names in params.yaml")
            if names.count("source") == 1 and "source" not in wanted:
                wanted = [*wanted, "source"]
            return file.read(columns=list(dict.fromkeys(wanted)))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({_first_line(error)}); write it again as Parquet") from None


def _strings(table: pa.Table, column: str, path: str) -> pa.ChunkedArray:
    """Column as large_string; a column of nulls only counts as text. `UserError` if it holds anything else."""
    values = table[column]
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (_is_text(kind) or pa.types.is_null(kind)):
        raise UserError(f"{path}: column {column!r} holds {values.type}, not text; convert it to a string column")
    text = values.cast(pa.large_string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        row = next(i for i, value in enumerate(text.cast(pa.large_binary()), 1) if not _is_utf8(value.as_py()))
        raise UserError(f"{path}: row {row}: column {column!r} is not valid UTF-8; write the file again as UTF-8") from None
    return text


def _text(table: pa.Table, column: str, path: str) -> pa.ChunkedArray:
    return pc.utf8_trim_whitespace(pc.fill_null(_strings(table, column, path), ""))


def _label_codes(values: pa.ChunkedArray, path: str, column: str) -> npt.NDArray[np.int8]:
    """(n,) codes; only the distinct values are looked at one by one."""
    encoded = pc.fill_null(values, "").dictionary_encode().combine_chunks()
    names: list[str] = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy()
    table = np.array([_CODES.get(name.strip().lower(), NO_LABEL) for name in names], dtype=np.int8)
    bad = [i for i, name in enumerate(names) if name.strip().lower() not in _CODES]
    if bad:
        row = int(np.flatnonzero(np.isin(indices, bad))[0])
        raise UserError(
            f"{path}: row {row + 1}: {column} is {names[indices[row]]!r}; labels are {', '.join(LABELS)}, "
            "and null, '' or '-' for none"
        )
    return table[indices] if len(indices) else np.zeros(0, dtype=np.int8)


def _source(table: pa.Table, path: str) -> pa.ChunkedArray:
    stem = Path(path).stem
    if "source" not in table.column_names or not _is_text(table["source"].type):
        return _constant(stem, table.num_rows)
    values = _strings(table, "source", path)
    alone, colon = pa.scalar(stem, pa.large_string()), pa.scalar(":", pa.large_string())
    return pc.if_else(pc.is_null(values), alone, pc.binary_join_element_wise(alone, values, colon))


def _constant(value: str, length: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(value, pa.large_string()), length)])


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")


def _batched(rows: Iterable[tuple[str, str, str]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
