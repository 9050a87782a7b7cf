"""Readers: whatever is wrong with a file is told in one line that names the file and, where there is one, the row."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import FileSpec, StsSpec
from pipeline.data.readers import open_pairs
from pipeline.families.text.documents import read_documents
from pipeline.utils.errors import UserError
from tests.copies import ROOT

H = b"premise,hypothesis,label\n"
GOOD = H + b"A fox runs.,An animal moves.,entailment\n" * 40
ROW = '{"premise": "A fox.", "hypothesis": "b", "label": "neutral"}\n'
MB10 = 10_000_000


def error_of(root: Path, path: str, **spec: Any) -> str:
    with pytest.raises(UserError) as caught:
        for _ in open_pairs(root, FileSpec(path=path, **spec)):
            pass
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 800
    assert message.startswith(f"{path}: "), message
    return message


def json_row(**values: str) -> bytes:
    pairs = {"premise": '"A fox."', "hypothesis": '"b"', "label": '"neutral"'} | values
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in pairs.items()) + "}\n").encode()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def tar_file() -> bytes:
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.add(__file__)
        return out.getvalue()


def zip_file() -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("f.csv", GOOD)
        return out.getvalue()


TEXT_FAULTS: list[tuple[str, bytes, str]] = [
    ("empty", b"", "is empty (0 bytes)"),
    ("bz2", bz2.compress(GOOD), "is compressed with bz2; unpack it, or compress it with gzip or zstd"),
    ("twice", gzip.compress(gzip.compress(GOOD)), "is compressed twice (gzip inside gzip); unpack it once"),
    ("packed Parquet", gzip.compress(b"PAR1"), "is compressed twice (Parquet inside gzip); unpack it once"),
    ("gzip cut short", gzip.compress(GOOD)[:-5], "its gzip compression is damaged"),
    ("wrong gzip sum", gzip.compress(GOOD)[:-5] + b"wrong", "its gzip compression is damaged"),
    ("xz", lzma.compress(GOOD), "is compressed with xz; unpack it, or compress it with gzip or zstd"),
    ("zip", zip_file(), "is a zip file (or a spreadsheet); unpack it and name the file inside"),
    ("UTF-16", GOOD.decode().encode("utf-16"), "is UTF-16 text; write it again as UTF-8"),
    ("UTF-16, high byte first", b"\xfe\xff" + GOOD.decode().encode("utf-16-be"), "is UTF-16 text; write it again as UTF-8"),
    ("DVC", b"outs:\n- md5: 0\n  path: f.txt\n", "is a pointer of DVC; get its file (dvc pull) and name that"),
    ("Arrow", b"ARROW1\0\0\xff", "line 1: not valid UTF-8"),
    ("empty zip", b"PK\5\6" + bytes(18), "line 1: a NUL character; the file is damaged or not a text file"),
    ("tar in gzip", gzip.compress(tar_file()), "is a tar file, compressed with gzip; unpack it"),
    ("JSON array", b'[\n {"premise": "A."}\n]', "is one JSON array; write its objects one a line"),
    ("Latin-1", H + b"A fox.,b,neutral\nCaf\xe9.,b,neutral\n", "row 2 (line 3): not valid UTF-8"),
    ("NUL", H + b'"A\n fox.",b,neutral\nA\0.,b,neutral\n', "row 2 (line 4): a NUL character"),
    ("return beside quotes", H + b'"A",b\rc,neutral\n', "row 1 (line 2): a carriage return (\\r) without \\n"),
    ("fields", H + b"A fox.,b,neutral\nC\n", "row 2 (line 3): 1 fields where the header has 3; correct the row"),
    ("empty line", H + b"A fox.,b,neutral\n\nA.,b,neutral\n", "row 2 (line 3): an empty line between rows"),
    ("unclosed quote", H + b'A fox.,b,neutral\n"A,b,neutral\nC,d,neutral\n', "row 2 (line 3): not csv (unexpected end of data)"),
    ("long field", H + b'"A' + b"\nA" * (MB10 // 2) + b'",b,neutral\n', "row 1 (line 2): not csv (field larger than"),
    ("column twice", b"premise,premise,hypothesis,label\na,b,c,-\n", "more than one column 'premise'"),
    ("unknown layout", b"text,other\nA.,b\n", "no known layout; it has the columns text, other: name premise, hypothesis, label"),
    ("two layouts", b"premise,hypothesis,label,sentence1,sentence2\na,b,-,d,e\n", "its columns can be read in several ways"),
    ("label", H + b"A.,b,neutral\nA.,b,entails\n", "row 2 (line 3): label is 'entails'; labels are entailment, neutral"),
    ("numbers as text", H + b"17,b,neutral\n,b,neutral\n-1.5e3,b,-\n", "column 'premise' holds only numbers ('17', …)"),
    ("key twice", json_row() + b'{"premise": "A", "premise": "B"}\n', "row 2: not a JSON object (key 'premise' occurs twice"),
    ("key missing", json_row() + b'{"premise": "A", "label": "-"}\n', "row 2: no key 'hypothesis', which row 1 has"),
    ("number as JSON label", json_row(label="1"), "row 1: label is '1'; labels are"),
    ("JSON surrogate", json_row() + json_row(premise=r'"A \ud800."'), "row 2: column 'premise' holds 'A \\ud800.', a lone"),
    ("JSON empty line", json_row() + b"\n" + json_row(), "row 2: an empty line between rows"),
]


@pytest.mark.parametrize(("data", "said"), [case[1:] for case in TEXT_FAULTS], ids=[case[0] for case in TEXT_FAULTS])
def test_a_fault_of_the_bytes_or_the_text(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "f.txt").write_bytes(data)
    assert said in error_of(tmp_path, "f.txt")


@pytest.mark.parametrize("data", [LFS, b"<html>", tar_file()], ids=["LFS", "page", "tar"])
def test_other_kinds_of_files_are_no_text_and_no_pairs(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "book.txt").write_bytes(data)
    with pytest.raises(UserError, match=r"book\.txt: is a "):
        list(read_documents([tmp_path]))
    assert ": is a " in error_of(tmp_path, "book.txt")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"premise": "sentence1"}, "no column 'sentence1'; it has premise, hypothesis, label"),
        ({"reverse_label": "back"}, "no column 'back'"),
        ({"hypothesis": "premise"}, "column 'premise' is used for two things"),
        ({"where": {"split": "train"}}, "no column 'split'"),
        ({"where": {"label": "Entailment"}}, "no row has label: Entailment; correct where"),
    ],
)
def test_a_column_or_value_that_is_not_there(tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    (tmp_path / "f.csv").write_bytes(GOOD)
    assert said in error_of(tmp_path, "f.csv", **spec)


@pytest.mark.parametrize(
    ("score", "said"), [("4,5", "is '4,5', not a number"), ("nan", "is 'nan'"), ("1e999", "is '1e999'"), ("1_0", "is '1_0'")]
)
def test_a_score_that_is_no_number(tmp_path: Path, score: str, said: str) -> None:
    (tmp_path / "s.csv").write_text(f'sentence1,sentence2,score\nA.,b,1\nA.,b,"{score}"\n')
    with pytest.raises(UserError, match=rf"s\.csv: row 2 \(line 3\): score {said}"):
        list(open_pairs(tmp_path, StsSpec(path="s.csv")))


def test_a_path_that_leads_to_no_readable_file(tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to(root / "loop")
    (tmp_path / "secret.csv").write_bytes(GOOD)
    assert "no such file under data.root" in error_of(root, "gone.csv")
    for path in ("folder", "pipe"):
        assert "is not a regular file (a folder, pipe" in error_of(root, path)
    for path in ("loop", "a" * 300, "a\0b"):
        assert "cannot be opened" in error_of(root, path)
    for path in ("../secret.csv", "folder/../../secret.csv", str(tmp_path / "secret.csv")):
        assert "is outside data.root" in error_of(root, path)
    with pytest.raises(UserError, match=r"data\.root: .* is not a folder"):
        open_pairs(tmp_path / "secret.csv", FileSpec(path="f.csv"))


def test_files_and_folders_without_permission() -> None:
    before = os.geteuid()
    # Not under tmp_path, whose parents nobody else may enter.
    with tempfile.TemporaryDirectory() as name:
        (root := Path(name) / "root").mkdir()
        (root / "f.csv").write_bytes(GOOD)
        (root / "f.csv").chmod(0)
        (closed := root / "closed").mkdir(mode=0)
        Path(name).chmod(0o755)
        try:
            if before == 0:
                # Root may read everything: be nobody for a moment.
                os.seteuid(65534)
            assert "cannot be opened (Permission denied)" in error_of(root, "f.csv")
            assert "cannot be opened (Permission denied)" in error_of(root, "closed/f.csv")
            with pytest.raises(UserError, match=r"data\.root: .*closed/deeper is not a folder that can be read"):
                open_pairs(closed / "deeper", FileSpec(path="f.csv"))
        finally:
            os.seteuid(before)
            closed.chmod(0o700)


ROWS: dict[str, Any] = {"premise": ["A fox.", "B.", "C."], "hypothesis": ["d", "e", "f"], "label": ["neutral", "-", None]}
LATIN = pa.Array.from_buffers(pa.string(), 3, pa.array([b"A fox.", b"caf\xe9", b"C."], pa.binary()).buffers())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"premise": [1, 2, 3]}, "column 'premise' holds int64, not text"),
        ({"hypothesis": [["A"]] * 3}, "column 'hypothesis' holds list<"),
        ({"label": [0.5, 1, 2]}, "row 1: label is '0.5'; labels are entailment"),
        ({"premise": LATIN}, "row 2: column 'premise' is not valid UTF-8"),
        ({"premise": ["A fox.", "B.", "C\0"]}, "row 3: column 'premise' contains a NUL character"),
    ],
)
def test_a_fault_of_a_parquet_column(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    pq.write_table(pa.table(ROWS | columns), tmp_path / "f.parquet", row_group_size=1)
    assert said in error_of(tmp_path, "f.parquet")


@pytest.mark.parametrize("written", [{}, {"use_dictionary": False, "column_encoding": {"premise": "DELTA_BYTE_ARRAY"}}])
def test_a_small_file_of_much_text_takes_little_memory(tmp_path: Path, written: dict[str, Any]) -> None:
    """90 MB of text in a few kB: as a dictionary of one text, and as rows that repeat the one before."""
    many = {"premise": ["a " * 45_000] * 1000, "hypothesis": [f"b {row}" for row in range(1000)], "label": ["neutral"] * 1000}
    pq.write_table(pa.table(many), tmp_path / "f.parquet", **written)
    assert (tmp_path / "f.parquet").stat().st_size < 300_000
    program = (
        "import sys, pathlib, pyarrow\n"
        "from pipeline.config.data_params import FileSpec\n"
        "from pipeline.data.readers import open_pairs\n"
        "seen = [len(text) for rows in open_pairs(pathlib.Path(sys.argv[1]), FileSpec(path='f.parquet')) for text in "
        "rows['premise'].to_pylist()]\n"
        "print(len(seen), min(seen), pyarrow.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT)
    rows, shortest, most = map(int, done.stdout.split())
    assert (rows, shortest) == (1000, 89_999)
    assert most < 60_000_000


def test_a_text_that_no_model_reads_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS | {"hypothesis": ["x" * 100_001, "y", "z"]}), tmp_path / "f.parquet")
    said = "row 1: column 'hypothesis' has 100,001 characters; a sentence has at most 100,000"
    assert said in error_of(tmp_path, "f.parquet")


def test_parquet_that_is_cut_damaged_or_empty(tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "f.parquet", write_page_checksum=True, compression="none")
    whole = (tmp_path / "f.parquet").read_bytes()
    for data in (whole[: len(whole) // 2], whole[:4], whole[:-4] + b"XXXX", whole[:-8] + struct.pack("<I", 2**31) + b"PAR1"):
        (tmp_path / "bad.parquet").write_bytes(data)
        assert "cannot be read as Parquet" in error_of(tmp_path, "bad.parquet")
    (tmp_path / "bad.parquet").write_bytes(whole.replace(b"A fox.", b"A fix.", 1))
    assert "cannot be read as Parquet" in error_of(tmp_path, "bad.parquet")
    (tmp_path / "bad.parquet").write_bytes(whole[:-4] + b"PARE")
    assert "encrypt" in error_of(tmp_path, "bad.parquet")
    pq.write_table(pa.table(ROWS).slice(0, 0), tmp_path / "none.parquet")
    assert "has no rows" in error_of(tmp_path, "none.parquet")
