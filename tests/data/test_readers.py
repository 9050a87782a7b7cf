"""Readers: every layout gives its rows, in every packing."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import FileSpec, HubSpec, StsSpec
from pipeline.data.readers import open_pairs
from pipeline.data.schema import BATCH_ROWS, CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL, RAW_PAIRS, RAW_STS, RawRows
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.data.fixtures import LABELLED, ROWS, expected, write_fixtures

CSV = "premise,hypothesis,label\n"


def rows_of(rows: RawRows) -> list[dict[str, Any]]:
    return [row for batch in rows for row in batch.to_pylist()]


def read(root: Path, text: str | bytes, name: str = "f.csv", **spec: Any) -> list[dict[str, Any]]:
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows_of(open_pairs(root, FileSpec(path=name, **spec)))


def code(label: str | None) -> int:
    return NO_LABEL if label is None else LABELS.index(label)


def test_every_layout_and_packing_gives_the_same_rows_each_time(tmp_path: Path) -> None:
    for file in write_fixtures(tmp_path):
        name = file.relative_to(tmp_path).as_posix()
        source = open_pairs(tmp_path, FileSpec(path=name))
        assert all(batch.schema == RAW_PAIRS for batch in source), name
        got = rows_of(source)
        assert [(r["premise"], r["hypothesis"], r["label"]) for r in got] == [
            (row.premise, row.hypothesis, code(row.label)) for row in expected(Path(name))
        ], name
        assert all(row["selected"] for row in got)
        assert got == rows_of(source)
        assert ({r["reverse_label"] for r in got} != {NO_LABEL}) == name.endswith("SICK.txt")


def test_sick_has_its_splits_and_both_directions(tmp_path: Path) -> None:
    write_fixtures(tmp_path)
    rows = rows_of(open_pairs(tmp_path, FileSpec(path="official/SICK.txt", where={"SemEval_set": "TEST"})))
    assert [r["selected"] for r in rows] == [row.part == "TEST" for row in LABELLED]
    assert [r["reverse_label"] for r in rows] == [code(row.reverse) for row in LABELLED]
    turned = FileSpec(path="official/SICK.txt", premise="sentence_B", hypothesis="sentence_A")
    assert {r["reverse_label"] for r in rows_of(open_pairs(tmp_path, turned))} == {NO_LABEL}


@pytest.mark.parametrize("name", ["SICK.txt", "SICK_train.txt"])
def test_sick_is_a_graded_set_too(tmp_path: Path, name: str) -> None:
    write_fixtures(tmp_path)
    source = open_pairs(tmp_path, StsSpec(path=f"official/{name}"))
    assert all(batch.schema == RAW_STS for batch in source)
    got = [(r["sentence1"], r["sentence2"], r["score"]) for r in rows_of(source)]
    assert got == [(row.premise, row.hypothesis, row.score) for row in LABELLED]


def test_the_three_files_of_infersent_are_one_by_the_command_of_the_docs(tmp_path: Path) -> None:
    write_fixtures(tmp_path)
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    (command,) = [line for line in page.splitlines() if " paste " in line]
    folder = tmp_path / "official/infersent"
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    rows = rows_of(open_pairs(folder, FileSpec(path="dev.tsv")))
    assert [(r["premise"], r["hypothesis"], LABELS[r["label"]]) for r in rows] == [row[:3] for row in LABELLED]


def test_text_is_stripped_of_what_nobody_sees_and_odd_characters_stay(tmp_path: Path) -> None:
    odd = ["שלום \u202eabc", "e\u200bf", "x" * 100_000, "a\u2028b"]
    rows = read(
        tmp_path, CSV + "".join(f"\u200b \ufeff{text}\u2060\t,b,neutral\n" for text in odd) + "\u200b\u200f \ufe0f\u00ad,b,-\n"
    )
    assert [r["premise"] for r in rows] == [*odd, ""]


def test_csv_fields_hold_new_lines_quotes_and_commas(tmp_path: Path) -> None:
    rows = read(tmp_path, CSV + '"He said:\n""No, thanks.""\r\nThen, he left.",b,neutral\r\n"",b,"-"\n\n')
    assert [(r["premise"], r["label"]) for r in rows] == [('He said:\n"No, thanks."\r\nThen, he left.', NEUTRAL), ("", NO_LABEL)]


def test_rows_of_snli_may_end_before_the_annotators_labels(tmp_path: Path) -> None:
    rows = read(tmp_path, "gold_label\tsentence1\tsentence2\tlabel1\tlabel2\nneutral\tA fox.\tb\tneutral\n", "f.txt")
    assert [r["premise"] for r in rows] == ["A fox."]


def test_other_label_names_and_numbers_are_mapped(tmp_path: Path) -> None:
    labels: Any = {"0": "entailment", "2": "contradiction", "hidden": "none"}
    got = read(tmp_path, CSV + "A.,b,0\nA.,b,2\nA.,b,Hidden\nA.,b,neutral\n", labels=labels)
    assert [r["label"] for r in got] == [ENTAILMENT, CONTRADICTION, NO_LABEL, NEUTRAL]
    table = pa.table({"premise": ["A.", "B."], "hypothesis": ["b", "c"], "label": [2, None]})
    pq.write_table(table, tmp_path / "f.parquet")
    spec = FileSpec(path="f.parquet", labels=labels)
    assert [r["label"] for r in rows_of(open_pairs(tmp_path, spec))] == [CONTRADICTION, NO_LABEL]
    lines = '{"premise": "A.", "hypothesis": "b", "label": 0}\n{"premise": "A.", "hypothesis": null, "label": null}'
    assert [(r["hypothesis"], r["label"]) for r in read(tmp_path, lines, "f.jsonl", labels=labels)] == [("b", 0), ("", NO_LABEL)]


def test_columns_that_are_named_and_the_source_column(tmp_path: Path) -> None:
    text = "a,b,gold,back,source\nA cow.,An animal.,entailment,neutral,wire\nB.,C.,-,-,\n"
    spec = {"premise": "a", "hypothesis": "b", "label": "gold", "reverse_label": "back"}
    rows = read(tmp_path, text, "mine.csv", **spec)
    assert [(r["label"], r["reverse_label"], r["source"]) for r in rows] == [(0, 1, "mine:wire"), (-1, -1, "mine:")]
    pq.write_table(
        pa.table({"premise": ["A."], "hypothesis": ["b"], "label": ["-"], "source": pa.nulls(1, pa.string())}), tmp_path / "p.x"
    )
    assert rows_of(open_pairs(tmp_path, FileSpec(path="p.x")))[0]["source"] == "p"


def test_scores_are_numbers_or_none_in_text_as_in_parquet(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("sentence1,sentence2,score\nA.,b,4.5\nA.,b,\nA.,b, 1e-1\n")
    pq.write_table(pa.table({"sentence1": ["A."] * 3, "sentence2": ["b"] * 3, "score": [4.5, None, 0.1]}), tmp_path / "s.parquet")
    for name in ("s.csv", "s.parquet"):
        got = [r["score"] for r in rows_of(open_pairs(tmp_path, StsSpec(path=name)))]
        assert got == [4.5, pytest.approx(float("nan"), nan_ok=True), 0.1]


def test_a_link_inside_the_root_is_followed_as_dvc_lays_them(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text(CSV + "A.,b,neutral\n")
    (root := tmp_path / "root").mkdir()
    (root / "f.csv").symlink_to(tmp_path / "cache")
    for path in ("f.csv", str(root / "f.csv")):
        assert len(rows_of(open_pairs(root, FileSpec(path=path)))) == 1


def test_long_files_come_in_batches_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    text = CSV + '"A\n,","b",neutral\n' * (BATCH_ROWS + 3)
    (tmp_path / "f.csv").write_text(text)
    assert [len(batch) for batch in open_pairs(tmp_path, FileSpec(path="f.csv"))] == [BATCH_ROWS, 3]
    (tmp_path / "f.csv").write_text(text + "A,b,x\n")
    batches = iter(open_pairs(tmp_path, FileSpec(path="f.csv")))
    # No batch is made before it is asked for.
    assert len(next(batches)) == BATCH_ROWS
    with pytest.raises(UserError, match=rf"row {BATCH_ROWS + 4} \(line {2 * (BATCH_ROWS + 3) + 2}\): label is 'x'"):
        next(batches)


def test_a_folder_of_save_to_disk_is_read_by_the_names_of_its_classes(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    order = {"neutral": 0, "contradiction": 1, "entailment": 2, None: -1}
    text, names = Value("string"), ClassLabel(names=["neutral", "Contradiction", "entailment"])
    rows = [{"premise": r.premise, "hypothesis": r.hypothesis, "label": order[r.label]} for r in ROWS]
    dataset = Dataset.from_list(rows, features=Features({"premise": text, "hypothesis": text, "label": names}))
    DatasetDict({"validation": dataset}).save_to_disk(str(tmp_path / "mine"))
    source = open_pairs(tmp_path, spec := HubSpec(dataset="mine", split="validation"))
    got = rows_of(source)
    assert [(r["premise"], r["hypothesis"], r["label"]) for r in got] == [(r.premise, r.hypothesis, code(r.label)) for r in ROWS]
    assert {r["source"] for r in got} == {"mine"}
    assert all(batch.schema == RAW_PAIRS for batch in source)
    with pytest.raises(UserError, match=r"^mine:.*no .*split 'test'.* has .*validation"):
        open_pairs(tmp_path, spec.model_copy(update={"split": "test"}))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"dataset": "someone/some"}, r"no such folder .* revision is missing; set it to a commit \(git ls-remote"),
        ({"dataset": "someone/some", "revision": "0" * 40}, "HF_HUB_OFFLINE is set and the local cache does not have it"),
        ({"dataset": "here", "revision": "0" * 40}, "is a folder .* has no revision"),
        ({"dataset": "here"}, "here doesn.*t contain any data files"),
    ],
)
def test_what_is_wrong_with_a_data_set_is_told(tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(UserError, match=said) as caught:
        open_pairs(tmp_path, HubSpec(split="train", **spec))
    assert "\n" not in str(caught.value)


def counts(source: RawRows) -> Counter[int]:
    return Counter(label for batch in source for label in batch["label"].to_pylist())


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("formats/snli/snli_1.0_dev.part.jsonl", [433, 421, 419, 16]),
        ("formats/snli/snli_dev_with_unlabelled.csv", [3329, 3235, 3278, 158]),
        ("formats/sick/SICK.txt", [2821, 5595, 1424, 0]),
        ("formats/sick/SICK_train.txt", [1299, 2536, 665, 0]),
        ("nli/sick_test.parquet", [1404, 2790, 712, 0]),
    ],
)
def test_real_files_have_their_rows(shared_data: Path, path: str, numbers: list[int]) -> None:
    found = counts(open_pairs(shared_data, FileSpec(path=path)))
    assert [found[label] for label in (ENTAILMENT, NEUTRAL, CONTRADICTION, NO_LABEL)] == numbers


def test_real_training_files_hold_the_documented_entailment_pairs(shared_data: Path) -> None:
    files = [open_pairs(shared_data, FileSpec(path=f"nli/{name}_train.parquet")) for name in ("snli", "mnli", "litl")]
    assert sum(counts(rows)[ENTAILMENT] for rows in files) == 60_848
