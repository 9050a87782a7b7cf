"""One small file in each layout that is read, and variants of them; all hold the same rows.

The files in `formats/` are as the corpora are given out: columns, order, quoting, line ends; their sentences are our own.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = Path(__file__).parent / "formats"


class Row(NamedTuple):
    """What every layout has to give, as far as it has it."""

    premise: str
    hypothesis: str
    label: str | None
    reverse: str
    score: float
    part: str


E, N, C = "entailment", "neutral", "contradiction"
ROWS = (
    Row("A potter shapes a tall vase.", "Someone works with clay.", E, N, 3.9, "TRAIN"),
    Row("A potter shapes a tall vase.", "The vase is for a queen.", N, N, 3.1, "TRAIN"),
    Row("A potter shapes a tall vase.", "Nobody is making anything.", C, C, 2.2, "TRAIN"),
    Row('The sign says "closed", but the door is open.', "A door is open.", E, N, 3.4, "TRIAL"),
    Row('The sign says "closed", but the door is open.', 'The sign says "open".', C, C, 3.0, "TRIAL"),
    Row("Two rowers, tired and wet, reach the pier.", "The rowers won the race.", N, N, 2.8, "TRAIN"),
    Row("Two rowers, tired and wet, reach the pier.", "A pair of rowers gets to the pier.", E, E, 4.6, "TEST"),
    Row("Zoë's café opens at 7 o'clock.", "The café doesn't open before noon.", C, N, 3.3, "TEST"),
    Row("Zoë's café opens at 7 o'clock.", "It is Zoë who bakes the bread.", None, N, 2.0, "TEST"),
    Row("A heron stands in the reeds", "A bird stands near water", E, N, 3.7, "TEST"),
    Row("A heron stands in the reeds", "The heron is a statue", N, N, 2.5, "TEST"),
    Row("A heron stands in the reeds", "A heron is flying over a roof", C, C, 2.4, "TRAIN"),
    Row("The path C:\\maps\\new is on the label.", "A label shows a path.", None, N, 3.5, "TRAIN"),
    Row("Three girls fold 北 out of paper.", "The girls fold paper.", E, N, 4, "TEST"),
)
LABELLED = tuple(row for row in ROWS if row.label is not None)
"""SICK has no rows without a label."""


def expected(file: Path) -> tuple[Row, ...]:
    """The rows of a file that `write_fixtures` wrote."""
    return LABELLED if file.name.startswith("SICK") else ROWS


def write_fixtures(folder: Path) -> list[Path]:
    """The official files and their variants under `folder`; the list holds those to be read."""
    shutil.copytree(FORMATS, folder / "official")
    official = sorted(file for file in (folder / "official").iterdir() if file.is_file())
    snli, multinli = ((FORMATS / name).read_bytes() for name in ("snli_1.0_sample.txt", "multinli_1.0_sample.jsonl"))
    variants = {
        "snli_1.0_sample.txt.gz": gzip.compress(snli, mtime=0),
        "snli_1.0_sample.txt.zst": pa.compress(snli, codec="zstd", asbytes=True),
        "no_suffix": gzip.compress(multinli),
        "bom.csv": b"\xef\xbb\xbf" + _csv("\n"),
        "crlf.csv": _csv("\r\n"),
        "tabs.tsv": _tsv(),
        "crlf.jsonl": _jsonl("\r\n"),
    }
    (folder / "variants").mkdir()
    for name, data in variants.items():
        (folder / "variants" / name).write_bytes(data)
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        columns = {column: pa.array(values, pa.string()).cast(kind) for column, values in _columns().items()}
        name = f"{str(kind).partition('<')[0]}.parquet"
        pq.write_table(pa.table(columns), folder / "variants" / name, row_group_size=5)
        variants[name] = b""
    return [*official, *(folder / "variants" / name for name in variants)]


def _columns() -> dict[str, list[str | None]]:
    return {"premise": [r.premise for r in ROWS], "hypothesis": [r.hypothesis for r in ROWS], "label": [r.label for r in ROWS]}


def _csv(end: str) -> bytes:
    out = StringIO()
    csv.writer(out, lineterminator=end).writerows([_columns().keys(), *((r[0], r[1], r[2] or "") for r in ROWS)])
    return out.getvalue().encode()


def _tsv() -> bytes:
    return "".join("\t".join(row) + "\n" for row in [_columns().keys(), *((r[0], r[1], r[2] or "-") for r in ROWS)]).encode()


def _jsonl(end: str) -> bytes:
    return "".join(json.dumps(dict(zip(_columns(), row[:3], strict=True))) + end for row in ROWS).encode()
