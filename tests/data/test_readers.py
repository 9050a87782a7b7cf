"""Readers: what they take, and what they say about files that are wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.readers import PairRows, read_generated, read_pairs, read_sts
from pipeline.data.schema import ENTAILMENT
from pipeline.errors import UserError
from pipeline.params import FileSpec, StsSpec

ROWS: dict[str, Any] = {
    "premise": ["  A dog sleeps on the rug.\n", "Two girls sing.", "A cook peels onions."],
    "hypothesis": ["An animal sleeps.", "The girls are sisters.", "The kitchen is empty."],
    "label": ["entailment", "neutral", "contradiction"],
}


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(ROWS | columns), path)
    return path


def error_of(root: Path, path: str, **columns: str) -> str:
    with pytest.raises(UserError) as caught:
        read_pairs(root, FileSpec(path=path, **columns))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_text_is_stripped_labels_are_coded_and_source_is_the_stem(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "mine.parquet")
    rows = read_pairs(tmp_path, FileSpec(path="sub/mine.parquet"))
    assert len(rows) == 3
    assert rows.premise.to_pylist() == ["A dog sleeps on the rug.", "Two girls sing.", "A cook peels onions."]
    assert rows.hypothesis.to_pylist() == ROWS["hypothesis"]
    assert rows.label.tolist() == [0, 1, 2]
    assert rows.source.to_pylist() == ["mine"] * 3
    assert rows.reverse_label is None


def test_labels_in_any_case_and_the_three_ways_of_having_none(tmp_path: Path) -> None:
    text = ["A bird sings."] * 6
    labels = ["Entailment", " NEUTRAL ", "-", "", None, "contradiction"]
    write(tmp_path / "f.parquet", premise=text, hypothesis=text, label=labels)
    assert read_pairs(tmp_path, FileSpec(path="f.parquet")).label.tolist() == [0, 1, -1, -1, -1, 2]


def test_other_column_names_reverse_labels_and_the_source_column(tmp_path: Path) -> None:
    columns = {"a": ROWS["premise"], "b": ROWS["hypothesis"], "gold": ROWS["label"]}
    table = pa.table({**columns, "back": ["entailment", "-", None], "source": ["wire", None, "web"]})
    pq.write_table(table, tmp_path / "f.parquet")
    spec = FileSpec(path="f.parquet", premise="a", hypothesis="b", label="gold", reverse_label="back")
    rows = read_pairs(tmp_path, spec)
    assert rows.reverse_label is not None
    assert rows.reverse_label.tolist() == [0, -1, -1]
    assert rows.source.to_pylist() == ["f:wire", "f", "f:web"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_column_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "f.parquet", label=pa.array(ROWS["label"]).cast(kind), premise=pa.array(ROWS["premise"]).cast(kind))
    rows = read_pairs(tmp_path, FileSpec(path="f.parquet"))
    assert rows.label.tolist() == [0, 1, 2]
    assert rows.premise.to_pylist()[1] == "Two girls sing."


def test_missing_file(tmp_path: Path) -> None:
    assert "gone.parquet: no such file under data.root" in error_of(tmp_path, "gone.parquet")


def test_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    assert "data.root:" in error_of(tmp_path / "root", "f.parquet")


@pytest.mark.parametrize("path", ["../secret.parquet", "sub/../../secret.parquet", "{outside}"])
def test_a_path_that_leaves_the_root_is_refused(tmp_path: Path, path: str) -> None:
    outside = write(tmp_path / "secret.parquet")
    (tmp_path / "root").mkdir()
    assert "outside data.root" in error_of(tmp_path / "root", path.format(outside=outside))


def test_absolute_path_and_link_inside_the_root_are_read(tmp_path: Path) -> None:
    cached = write(tmp_path / "cache" / "f.parquet")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked.parquet").symlink_to(cached)  # as DVC does with cache.type: symlink
    assert len(read_pairs(root, FileSpec(path="linked.parquet"))) == 3
    assert len(read_pairs(root, FileSpec(path=str(root / "linked.parquet")))) == 3


def test_not_a_parquet_file_and_a_file_cut_short(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("premise,hypothesis,label\n")
    assert "text.parquet: cannot be read as Parquet" in error_of(tmp_path, "text.parquet")
    whole = write(tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "cut.parquet: cannot be read as Parquet" in error_of(tmp_path, "cut.parquet")


def test_missing_column_lists_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path / "f.parquet")
    message = error_of(tmp_path, "f.parquet", premise="sentence1")
    assert "no column 'sentence1'" in message
    assert "premise, hypothesis, label" in message


@pytest.mark.parametrize("column", ["premise", "label"])
def test_a_column_that_is_not_text(tmp_path: Path, column: str) -> None:
    write(tmp_path / "f.parquet", **{column: [0, 1, 2]})
    assert f"f.parquet: column '{column}' holds int64, not text" in error_of(tmp_path, "f.parquet")


def test_a_label_outside_the_set_is_named_with_its_row(tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", label=["neutral", "entails", "maybe"])
    assert "f.parquet: row 2: label is 'entails'" in error_of(tmp_path, "f.parquet")


def test_text_that_is_not_utf8_is_named_with_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"A fine day.", b"caf\xe9", b"Rain."], pa.binary())
    write(tmp_path / "f.parquet", premise=pa.Array.from_buffers(pa.string(), 3, raw.buffers()))
    assert "f.parquet: row 2: column 'premise' is not valid UTF-8" in error_of(tmp_path, "f.parquet")


def test_sts_scores(tmp_path: Path) -> None:
    table = pa.table({"x": ["A boat."] * 3, "y": ["A ship. "] * 3, "score": [5, None, 0]})
    pq.write_table(table, tmp_path / "s.parquet")
    rows = read_sts(tmp_path, StsSpec(path="s.parquet", sentence1="x", sentence2="y"))
    np.testing.assert_array_equal(rows.score, [5.0, np.nan, 0.0])
    assert rows.sentence2.to_pylist() == ["A ship."] * 3
    with pytest.raises(UserError, match="column 'x' holds string, not numbers"):
        read_sts(tmp_path, StsSpec(path="s.parquet", sentence1="x", sentence2="y", score="x"))


def test_generated_rows_repeat_and_splits_share_no_pair() -> None:
    def pairs(rows: PairRows) -> list[tuple[str, str]]:
        return list(zip(rows.premise.to_pylist(), rows.hypothesis.to_pylist(), strict=True))

    train, again, test = (read_generated(split, 300, seed=3) for split in ("train", "train", "test"))
    assert len(train) == 300
    assert pairs(train) == pairs(again)
    assert set(train.label.tolist()) == {0, 1, 2}
    assert not set(pairs(train)) & set(pairs(test))
    assert train.source.to_pylist()[:1] == ["generated"]


def test_real_training_files_hold_the_documented_entailment_pairs() -> None:
    root = Path(os.environ.get("GAUSSCSE_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not (root / "nli").is_dir():
        pytest.skip(f"{root}/nli is absent; set GAUSSCSE_DATA to the folder with the real data")
    files = [read_pairs(root, FileSpec(path=f"nli/{name}_train.parquet")) for name in ("snli", "mnli", "litl")]
    assert sum(int((rows.label == ENTAILMENT).sum()) for rows in files) == 60_848
