"""Text files as programs write them: separators, quotes, triplets, labels; each is read, or refused in one line that says how."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.config.data_params import FileSpec
from pipeline.data.readers import open_pairs
from pipeline.data.readers.row_blocks import warn_once
from pipeline.data.schema import LABELS
from pipeline.utils.errors import UserError
from pipeline.utils.logs import set_up

HEADER = ("premise", "hypothesis", "label")
ROWS = [
    ('The boy says "hello".', "A boy speaks.", "entailment"),
    ("A fox; a dog | a cow, a\tline\nbreak.", "Animals.", "neutral"),
    ('"Yes."', "No.", "contradiction"),
]


def write(file: Path, rows: Any = ROWS, header: Any = HEADER, **form: Any) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, **form).writerows([header, *rows])
    return file


def read(file: Path, **spec: Any) -> list[tuple[str, str, str | None]]:
    rows = (row for batch in open_pairs(file.parent, FileSpec(path=file.name, **spec)) for row in batch.to_pylist())
    return [(r["premise"], r["hypothesis"], None if r["label"] < 0 else LABELS[r["label"]]) for r in rows]


def refused(file: Path, **spec: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(file, **spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("separator", ["\t", ";", "|", ",", "\x01"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_the_csv_module_writes_is_read(tmp_path: Path, separator: str, quoting: Any) -> None:
    file = write(tmp_path / "f.csv", delimiter=separator, quoting=quoting)
    assert read(file, quotes="csv", separator=separator) == ROWS


@pytest.mark.parametrize("separator", [";", "|", "^", "\x01"])
def test_another_separator_is_named_with_its_key(tmp_path: Path, separator: str) -> None:
    said = refused(write(tmp_path / "f.csv", delimiter=separator))
    assert said.startswith(f"f.csv: line 1: {separator!r} is between the columns")
    assert "set separator: " in said


@pytest.mark.parametrize(
    ("rows", "form", "where"),
    [
        (ROWS[:1], {}, "row 1 (line 2): '\"The boy says"),
        (ROWS[2:], {"quoting": csv.QUOTE_ALL}, "line 1: '\"premise\"'"),
        ([("Plain.", "b", "neutral"), ("A\\fox", "b", "neutral")], {"escapechar": "\\", "quotechar": "'"}, ""),
        ([('Says "a".', "b", "neutral")], {"escapechar": "\\", "doublequote": False, "quoting": csv.QUOTE_NONNUMERIC}, "line 1"),
        (ROWS[1:2], {}, "set quotes: csv"),
    ],
)
def test_quoted_text_in_a_tsv_is_refused(tmp_path: Path, rows: Any, form: dict[str, Any], where: str) -> None:
    file = write(tmp_path / "f.tsv", rows, delimiter="\t", **form)
    if not where:
        assert len(read(file)) == len(rows)
        return
    said = refused(file)
    assert where in said
    assert "quotes: csv" in said


def test_a_quote_after_a_blank_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text('premise, hypothesis, label\nA dog runs., "An animal moves.", entailment\n')
    said = refused(tmp_path / "f.csv")
    assert "row 1 (line 2): ' \"An animal moves.\"' has a quote after a blank" in said
    assert "remove the blank" in said


def test_quotes_that_belong_to_the_text_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    warn_once.cache_clear()
    raw = [('"Yes."', 'He said: "a"', "neutral"), ('"A" and "b"', "c", "neutral")]
    (file := tmp_path / "f.tsv").write_text("".join("\t".join(row) + "\n" for row in (HEADER, *raw)))
    assert read(file) == raw
    assert not capsys.readouterr().err
    quoted = write(tmp_path / "q.tsv", ROWS[:1], delimiter="\t")
    assert read(quoted, quotes="none")[0][0] == '"The boy says ""hello""."'
    file.write_text(file.read_text() + quoted.read_text().splitlines()[1] + "\n")
    assert len(read(file)) == len(read(file)) == 3
    assert [line[:31] for line in capsys.readouterr().err.splitlines()] == ["warning: f.tsv: row 3 (line 4):"]


@pytest.mark.parametrize("kind", ["float", "object", "category", "csv"])
def test_labels_that_pandas_made_floats(tmp_path: Path, kind: str) -> None:
    labels: Any = {"0": "entailment", "1.0": "neutral"}
    table = pd.DataFrame({"premise": ["A.", "B.", "C."], "hypothesis": ["d", "e", "f"], "label": [0.0, 1.0, None]})
    if kind == "csv":
        table.to_csv(tmp_path / "f", index=False)
    else:
        table.astype({"label": kind}).to_parquet(tmp_path / "f")
    assert [row[2] for row in read(tmp_path / "f", labels=labels)] == ["entailment", "neutral", None]
    table.assign(label=0.5).to_parquet(tmp_path / "half")
    assert "half: row 1: label is '0.5'" in refused(tmp_path / "half", labels=labels)
    with pytest.raises(ValueError, match="names '0' twice"):
        FileSpec(path="f", labels={"0": "entailment", "0.0": "neutral"})


def test_triplets_and_pairs_without_labels(tmp_path: Path) -> None:
    rows = [("A dog.", "An animal.", "No animal."), ("A cow, too.", "A cow.", ""), ("A fox.", "Fox.", "A dog.")]
    file = write(tmp_path / "simcse.csv", rows, ("sent0", "sent1", "hard_neg"))
    assert "without labels, contradiction or fixed_label" in refused(file)
    keys = {"premise": "sent0", "hypothesis": "sent1"}
    assert read(file, **keys, contradiction="hard_neg") == [
        ("A dog.", "An animal.", "entailment"),
        ("A dog.", "No animal.", "contradiction"),
        ("A cow, too.", "A cow.", "entailment"),
        ("A fox.", "Fox.", "entailment"),
        ("A fox.", "A dog.", "contradiction"),
    ]
    assert [row[2] for row in read(file, **keys, fixed_label="neutral")] == ["neutral"] * 3
    with pytest.raises(ValueError, match="fixed_label gives the labels of all rows; remove label"):
        FileSpec(path="f", fixed_label="entailment", label="gold")
