"""Operation rows from files: what each layout gives, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.families.operations.generated import OperationRow
from pipeline.families.operations.readers import read_operations
from pipeline.utils.errors import UserError


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def rows_of(path: Path, **where: str) -> list[OperationRow]:
    return [row for rows in read_operations(path, where=where) for row in rows]


def test_a_split_sentence_gives_fusion_and_difference(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        complex=["It rains  and it pours .", "One .", "A , b , c ."],
        split=["It rains . <::::> It pours .", "One .", "A . <::::> b . <::::> c ."],
    )
    assert rows_of(path) == [
        OperationRow("fusion", "It rains .", "It pours .", "It rains and it pours ."),
        OperationRow("difference", "It rains and it pours .", "It rains .", "It pours ."),
    ]
    assert [len(rows) for rows in read_operations(path, where={})] == [2, 0, 0]


def test_compressions_and_paraphrases_have_one_input(tmp_path: Path) -> None:
    path = parquet(tmp_path, sentence=["A long one.", "Another."], compression=["One.", "An."], split=["train", "test"])
    assert rows_of(path, split="test") == [OperationRow("compression", "Another.", None, "An.")]
    path = parquet(tmp_path, label=[0, 1], sentence1=["Why?", "How?"], sentence2=["When?", "In what way?"])
    with pytest.raises(
        UserError, match=r"t\.parquet: column 'label' may say which pairs are paraphrases; name its value with where"
    ):
        rows_of(path)
    assert rows_of(path, label="1") == [OperationRow("reconstruction", "How?", None, "In what way?")]


def test_rows_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"operation": "difference", "a": "A dog runs and barks.", "b": "A dog runs.", "target": "A dog barks."}\n'
        '{"operation": "compression", "a": "A big dog runs.", "b": null, "target": "A dog runs."}\n',
        encoding="utf-8",
    )
    assert rows_of(path) == [
        OperationRow("difference", "A dog runs and barks.", "A dog runs.", "A dog barks."),
        OperationRow("compression", "A big dog runs.", None, "A dog runs."),
    ]
    (tmp_path / "own.csv").write_text("operation,a,target\nreconstruction,A b.,B a.\n", encoding="utf-8")
    assert rows_of(tmp_path / "own.csv") == [OperationRow("reconstruction", "A b.", None, "B a.")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": ["x"]}, r"t\.parquet: needs the columns of one layout \(operation and a and target; or complex and split; or"),
        ({"complex": ["x", None], "split": ["a <::::> b", "a <::::> b"]}, r"t\.parquet: row 2: complex is empty; fill it in"),
        (
            {"operation": ["mix"], "a": ["x"], "target": ["y"]},
            r"t\.parquet: row 1: operation is 'mix'; it must be fusion, difference, compression or reconstruction$",
        ),
        (
            {"operation": ["fusion"], "a": ["x"], "target": ["y"]},
            r"t\.parquet: row 1: fusion needs a second input: fill in column b$",
        ),
        (
            {"operation": ["compression"], "a": ["x"], "b": ["z"], "target": ["y"]},
            r"t\.parquet: row 1: compression has one input: leave empty column b$",
        ),
    ],
)
def test_a_fault_is_one_line(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        rows_of(parquet(tmp_path, **columns))
    assert "\n" not in str(caught.value)


def test_a_file_without_rows_to_read_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path, sentence1=["x"], sentence2=["y"], part=["test"])
    with pytest.raises(UserError, match=r"t\.parquet: no row has part: train; correct where"):
        rows_of(path, part="train")
    with pytest.raises(UserError, match=r"t\.parquet: no column 'other'; it has sentence1, sentence2, part: "):
        rows_of(path, other="train")
    with pytest.raises(UserError, match=r"missing\.parquet: no such file"):
        rows_of(tmp_path / "missing.parquet")
