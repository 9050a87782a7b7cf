"""A local hub folder gives the rows that `datasets.load_dataset` gives, and is refused where the library refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import HubSpec
from pipeline.data.readers import open_pairs
from pipeline.data.readers.row_blocks import warn_once
from pipeline.utils.errors import UserError
from pipeline.utils.logs import set_up

CONFIGS = "---\nconfigs:\n- {config_name: a, data_files: a/*.parquet}\n- {config_name: b, data_files: b/*.parquet}\n---\n"
NAMED = "---\ndataset_info:\n  features:\n  - {name: premise, dtype: string}\n  - {name: hypothesis, dtype: string}\n" + (
    "  - {name: label, dtype: {class_label: {names: {'0': neutral, '1': entailment}}}}\n---\n"
)


def table(word: str, **columns: Any) -> pa.Table:
    rows: dict[str, Any] = {"premise": [f"{word} 1", f"{word} 2"], "hypothesis": ["c", "d"], "label": [0, 1]}
    return pa.table(rows | columns)


TRAIN = {"train-00000-of-00002.parquet": table("A"), "train-00001-of-00002.parquet": table("B")}
TWO = {"a/1.parquet": table("A"), "b/1.parquet": table("B"), "README.md": CONFIGS}
KINDS = "column 'label' is int64 in hub:train (train-00000-of-00002.parquet) and string in hub:train (train-2.parquet)"
# Files, configuration, split, and the message if the library refuses the folder.
CASES: dict[str, tuple[dict[str, Any], str | None, str, str]] = {
    "names of the hub": (TRAIN | {"validation-00000-of-00001.parquet": table("V")}, None, "validation", ""),
    "another split": (TRAIN, None, "test", "no split 'test'; the folder has train"),
    "two configurations": (TWO, "b", "train", ""),
    "two and none named": (TWO, None, "train", "Please pick one among the available configs: ['a', 'b']"),
    "names of classes": ({"train.parquet": table("A"), "README.md": NAMED}, None, "train", ""),
    "csv": ({"train.csv": table("A")}, None, "train", ""),
    "csv, another column": (
        {"train-1.csv": table("A"), "train-2.csv": table("B").rename_columns(["premise", "hypothesis", "gold"])},
        None,
        "train",
        "column 'label' is string in hub:train (train-1.csv) and missing in hub:train (train-2.csv)",
    ),
    "numbers as text": (TRAIN | {"train-2.parquet": table("C", label=["0", "1"])}, None, "train", ""),
    "words as numbers": (TRAIN | {"train-2.parquet": table("C", label=["no", "yes"])}, None, "train", KINDS),
    "one column more": (TRAIN | {"train-2.parquet": table("C", more=["x", "y"])}, None, "train", "column 'more' is missing in"),
    "nothing": ({"notes.md": "x"}, None, "train", "correct dataset or config"),
}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (file := folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            file.write_text(content)
        elif ".csv" in name:
            content.to_pandas().to_csv(file, index=False)
        else:
            pq.write_table(content, file)


def rows_of(root: Path, config: str | None = None, split: str = "train", named: bool = False) -> list[tuple[str, str, int]]:
    labels: Any = {} if named else {"0": "neutral", "1": "entailment"}
    rows = open_pairs(root, HubSpec(dataset="hub", config=config, split=split, labels=labels))
    return [(r["premise"], r["hypothesis"], r["label"]) for batch in rows for r in batch.to_pylist()]


@pytest.mark.parametrize("case", CASES)
def test_a_folder_is_read_as_the_library_reads_it(tmp_path: Path, case: str) -> None:
    files, config, split, said = CASES[case]
    write(tmp_path / "hub", files)
    try:
        dataset: Any = datasets.load_dataset(str(tmp_path / "hub"), config, split=split, cache_dir=str(tmp_path / "cache"))
    except Exception:
        with pytest.raises(UserError) as caught:
            rows_of(tmp_path, config, split)
        assert said
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    codes, named = {0: 1, 1: 0, None: -1}, case == "names of classes"
    assert rows_of(tmp_path, config, split, named) == [(r["premise"], r["hypothesis"], codes[r["label"]]) for r in dataset]


def test_classes_in_another_order_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    warn_once.cache_clear()
    for number, names in enumerate((["entailment", "neutral"], ["neutral", "entailment"])):
        text = dict.fromkeys(("premise", "hypothesis"), datasets.Value("string"))
        features = datasets.Features(text | {"label": datasets.ClassLabel(names=names)})
        rows = {"premise": ["a"], "hypothesis": ["b"], "label": [0]}
        (tmp_path / "hub").mkdir(exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"hub/train-{number}.parquet")
    rows_of(tmp_path, named=True)
    said = "int64 of entailment, neutral in hub:train (train-0.parquet) and int64 of neutral, entailment in"
    assert said in capsys.readouterr().err


def test_what_the_library_does_silently_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    warn_once.cache_clear()
    write(tmp_path / "hub", {"a/train.parquet": table("A"), "b/train.parquet": table("B").drop(["label"])})
    assert len(rows_of(tmp_path)) == 4
    folders, columns = capsys.readouterr().err.splitlines()
    assert "is read from the folders a, b together; if each is one, name it as dataset" in folders
    assert "column 'label' is int64 in hub:train (a/train.parquet) and missing in hub:train (b/train.parquet)" in columns


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    write(tmp_path / "hub", {"train.csv": "premise,hypothesis,label\n"})
    with pytest.raises(UserError, match="hub:train: has no rows"):
        rows_of(tmp_path)


def test_what_is_not_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "hub", {"train.parquet": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"})
    with pytest.raises(UserError, match=r"hub:train \(train.parquet\): is a pointer of Git LFS"):
        rows_of(tmp_path)
    write(tmp_path, {"secret.parquet": table("A")})
    write(tmp_path / "hub", {"README.md": "---\nconfigs:\n- {config_name: a, data_files: ../secret.parquet}\n---\n"})
    with pytest.raises(UserError, match=r"README.md names .*secret.parquet, which is outside the folder"):
        rows_of(tmp_path, "a")
    datasets.Dataset(table("A")).save_to_disk(str(tmp_path / "hub"))
    with pytest.raises(UserError, match="is a folder of save_to_disk, which has no configurations; set config to null"):
        rows_of(tmp_path, "a")
