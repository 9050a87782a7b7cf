"""Columns of text as the usual programs write them: `gausscse encode` and the readers take the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import FileSpec
from pipeline.data.readers import open_pairs
from pipeline.inference.corpus import read_gaussians
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError
from tests.distributed.bulk import encode_here
from tests.trial_of import tiny_encoder

TEXTS = ["A dog.", None, "Zoë.", "A dog."]
NULLS = [None] * 4


def of_duckdb(column: str) -> Callable[[Path], Any]:
    rows = "(VALUES (0, 'A dog.'), (1, NULL), (2, 'Zoë.'), (3, 'A dog.')) v(i, s)"
    more = "array_value(NULL::INT, NULL) a, [NULL] l, NULL z, {'x': NULL} t"
    return lambda file: duckdb.sql(f"COPY (SELECT {column} AS sentence, {more} FROM {rows} ORDER BY i) TO '{file}'")


def of_polars(texts: list[Any], kind: str) -> Callable[[Path], Any]:
    def write(file: Path) -> None:
        pl = pytest.importorskip("polars")
        fixed = pl.Series([[1.0, 2.0], None, [None, None], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2))
        column = pl.Series(texts, dtype=pl.Enum(["A dog.", "Zoë."]) if kind == "Enum" else getattr(pl, kind))
        pl.DataFrame({"sentence": column, "a": fixed, "l": [[None]] * 4}).write_parquet(file)

    return write


WRITERS: dict[str, Callable[[Path], Any]] = {
    "pandas null": lambda file: pd.DataFrame({"sentence": NULLS, "l": [[None]] * 4}).to_parquet(file),
    "DuckDB null": of_duckdb("NULL"),
    "polars Null": of_polars(NULLS, "Null"),
}
for kind in ("object", "str", "category", "string[pyarrow]"):
    WRITERS[f"pandas {kind}"] = lambda file, kind=kind: pd.DataFrame({"sentence": TEXTS}, dtype=kind).to_parquet(file)
for column in ("s", "s::ENUM('A dog.', 'Zoë.')", "encode(s)"):
    WRITERS[f"DuckDB {column}"] = of_duckdb(column)
for kind in ("String", "Categorical", "Enum", "Binary"):
    WRITERS[f"polars {kind}"] = of_polars([text and text.encode() for text in TEXTS] if kind == "Binary" else TEXTS, kind)
for kind in (pa.string_view(), pa.large_binary()):
    WRITERS[f"pyarrow {kind}"] = lambda file, kind=kind: pq.write_table(pa.table({"sentence": pa.array(TEXTS).cast(kind)}), file)


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def encode(encoder: GaussianEncoder, source: Path, *keep: str) -> tuple[list[int], pa.Table]:
    out = f"{source}-{len(keep)}"
    encode_here(encoder, source, out, "sentence", keep)
    encoded = read_gaussians(out)
    return encoded.rows, encoded.kept


@pytest.mark.parametrize("program", WRITERS)
def test_every_type_of_text_is_encoded_and_read(encoder: GaussianEncoder, tmp_path: Path, program: str) -> None:
    WRITERS[program](file := tmp_path / "f.parquet")
    texts = NULLS if "null" in program.lower() else TEXTS
    assert encode(encoder, file)[0] == [row for row, text in enumerate(texts) if text is not None]
    if texts == TEXTS:
        kept = encode(encoder, file, "sentence")[1].column("sentence").cast(pa.string())
        assert kept.to_pylist() == ["A dog.", "Zoë.", "A dog."]
    spec = FileSpec(path=file.name, premise="sentence", hypothesis="other", fixed_label="entailment")
    pq.write_table(pq.read_table(file, columns=["sentence"]).append_column("other", pa.array(["b"] * 4)), file)
    premises = [premise for batch in open_pairs(tmp_path, spec) for premise in batch["premise"].to_pylist()]
    assert premises == [text or "" for text in texts]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.csv", b"sentence\nA dog.\n", "is not Parquet; write it as Parquet"),
        ("c.jsonl", b'{"sentence": "A dog."}\n', "is not Parquet; write it as Parquet"),
        ("c.txt", b"A dog.\n", "is not Parquet; write it as Parquet"),
        ("c.parquet", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS; "),
        ("half.parquet", b"PAR1" + bytes(100), "cannot be read as Parquet"),
    ],
)
def test_other_files_are_named(encoder: GaussianEncoder, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{name}: {said}")) as caught:
        encode(encoder, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_text_or_kept_is_said(encoder: GaussianEncoder, tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence": [b"ok", b"\xff"]}), file := tmp_path / "f.parquet")
    with pytest.raises(UserError, match=r"f.parquet: column 'sentence' is not valid UTF-8 in row 1"):
        encode(encoder, file)
    pq.write_table(pa.table([["a"], ["b"]], names=["sentence", "sentence"]), file)
    with pytest.raises(UserError, match="has column 'sentence' twice; rename one"):
        encode(encoder, file)
    pq.write_table(pa.table({"sentence": [["a"]]}), file)
    with pytest.raises(UserError, match=r"column 'sentence' is list<.*>, not text; name a column of text with --column"):
        encode(encoder, file)
    of_polars(TEXTS, "String")(file)
    with pytest.raises(UserError, match="write a fixed-size list with nulls as a list, or do not keep it"):
        encode(encoder, file, "a")
