"""Stage prepare: every reason a row is dropped for, what stays, and that nothing is ever half-written."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.load import load_params
from pipeline.data.cleaning import REASONS
from pipeline.data.schema import REVERSED
from pipeline.data.table_io import ROW_GROUP, ParquetFile
from pipeline.families.pairs import prepare as pairs_prepare
from pipeline.families.prepare import prepare
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN
from tests.data.small_corpus import (
    DEV,
    PROMOTED,
    TEST,
    TRAIN_A,
    TRAIN_B,
    Row,
    params,
    raw_params,
    rows,
    snapshot,
    write,
    write_corpus,
)

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "raw")


def test_every_reason_is_counted_per_file_and_in_total(root: Path, tmp_path: Path) -> None:
    train = prepare(params(root), tmp_path / "out")["train"]
    a, b = train["files"]["a.parquet"], train["files"]["b.parquet"]
    none = dict.fromkeys(REASONS, 0)
    dropped = none | {"no_gold_label": 2, "empty": 2, "duplicate": 1, "contradictory_labels": 2}
    assert a == {"rows_in": 10, "rows_out": 3, "dropped": dropped}
    assert b == {"rows_in": 9, "rows_out": 5, "dropped": none | {"duplicate": 1, "leaked_pair": 1, "leaked_premise": 2}}
    assert train["dropped"] == {reason: a["dropped"][reason] + b["dropped"][reason] for reason in REASONS}
    assert (train["rows_in"], train["rows_out"]) == (19, 8)
    assert train["labels"] == {"entailment": 5, "neutral": 1, "contradiction": 2}
    assert (train["entailment_pairs"], train["triplets"], train["triplets_with_contradiction"]) == (5, 5, 3)
    assert (train["unique_premises"], train["entailments_per_premise_mean"]) == (3, pytest.approx(5 / 3, abs=1e-6))


def test_pairs_triplets_and_reversed(root: Path, tmp_path: Path) -> None:
    prepare(params(root), tmp_path / "out")
    train = tmp_path / "out" / "train"
    kept = [TRAIN_A[0], TRAIN_A[1], TRAIN_A[2], TRAIN_B[1], TRAIN_B[2], TRAIN_B[3], TRAIN_B[4], TRAIN_B[8]]
    assert rows(train / "pairs.parquet", "premise", "hypothesis", "label") == kept
    assert rows(train / "pairs.parquet", "source") == [("a",)] * 3 + [("b",)] * 5
    assert pq.read_schema(train / "pairs.parquet").names == ["premise", "hypothesis", "label", "source", "reverse_label"]
    assert rows(train / "triplets.parquet", "premise", "entailment", "contradiction", "source") == [
        ("A dog runs.", "An animal moves.", "A cat sits.", "a"),
        ("a dog runs.", "An animal moves.", None, "b"),
        ("A dog runs.", "A creature is moving.", "A dog is asleep.", "b"),
        ("A dog runs.", "Something is not still.", "A cat sits.", "b"),
        ("A lamp glows.", "A ship sails.", None, "b"),
    ]
    entailed = [(h, p) for p, h, label in kept if label == "entailment"]
    assert rows(train / "reversed.parquet", "premise", "hypothesis") == entailed


def test_a_pair_that_holds_both_ways_is_no_reversed_pair(root: Path, tmp_path: Path) -> None:
    a, b, c = "A dog naps.", "A dog dozes.", "A dog is asleep."
    facts: list[Row] = [(a, b, "entailment"), (b, a, "entailment"), (a, a, "entailment"), (a, c, "entailment"), (c, a, "neutral")]
    write(root / "a.parquet", facts)
    moved: list[Row] = [(f"{p} Now.", f"{h} Now.", label) for p, h, label in facts]
    write(root / "test.parquet", moved, back=[None] * 5)
    report = prepare(params(root, files={"train": [{"path": "a.parquet"}]}), tmp_path / "out")
    known = ["entailment"] * 3 + [None, "entailment"]
    for name in ("train/pairs", "tests/mine"):
        assert [row[0] for row in rows(tmp_path / f"out/{name}.parquet", "reverse_label")] == known
    # Only "A dog is asleep." does not entail the other sentence.
    assert rows(tmp_path / "out/train/reversed.parquet", "premise", "hypothesis") == [(c, a)]
    assert [row[0] for row in rows(tmp_path / "out/train/triplets.parquet", "two_way")] == [1, 1, 1, 0]
    assert (report["train"]["entailment_pairs"], report["train"]["two_way"]) == (4, 3)


def test_development_and_test_sets_stay_complete(root: Path, tmp_path: Path) -> None:
    report = prepare(params(root), tmp_path / "out")
    assert rows(tmp_path / "out/dev/dev.parquet", "premise", "hypothesis", "label") == DEV[:3]
    dev = report["dev"]
    assert dev["dropped"] == {"not_selected": 0, "no_gold_label": 1, "empty": 1}
    assert (dev["rows_in"], dev["rows_out"], dev["kept_duplicate"], dev["kept_contradictory"]) == (5, 3, 1, 3)
    assert (dev["sentences"], dev["sentences_in_train"]) == (2, 1)  # "A ship sails." is a training hypothesis
    assert rows(tmp_path / "out/tests/mine.parquet", "label", "reverse_label") == [
        ("contradiction", "contradiction"),
        ("entailment", "neutral"),
    ]
    assert rows(tmp_path / "out/tests/graded.sts.parquet", "sentence1", "sentence2", "score", "source") == [
        ("A crow flies.", "A bird flies.", 4.5, "sts")
    ]
    assert report["sts"]["graded"]["dropped"] == {"not_selected": 0, "no_gold_label": 1, "empty": 1}


def test_unlabelled_rows_can_count_as_not_entailed(root: Path, tmp_path: Path) -> None:
    report = prepare(params(root, unlabelled="non-entailment"), tmp_path / "out")
    assert rows(tmp_path / "out/dev/dev.parquet", "hypothesis", "label")[3] == ("A ship sinks.", "neutral")
    assert report["dev"]["unlabelled_as_neutral"] == 1
    assert report["dev"]["dropped"] == {"not_selected": 0, "no_gold_label": 0, "empty": 1}
    assert report["train"]["dropped"]["no_gold_label"] == 2
    # In every other output, such a row is a neutral one: also where another label makes a pair a hard one.
    evaluate = load_params(PLAIN).evaluate.model_copy(update={"threshold_step": 0.5})
    for name, label in (("one", None), ("two", "neutral")):
        asked = [("A kite flies.", f"A toy {verb}.", label) for verb in ("moves", "is asleep", "sits", "chases a ball")]
        write(root / "test.parquet", [*asked, TEST[0]], back=[None] * 5)
        prepare(params(root, unlabelled="non-entailment"), tmp_path / name, evaluate)
    hard = [pq.read_table(tmp_path / f"{name}/hard/mine.parquet")["hard"].to_pylist() for name in ("one", "two")]
    assert hard[0] == hard[1] and True in hard[0][:4]


def test_equal_rows_give_equal_bytes_whatever_their_row_groups(root: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare(params(root), tmp_path / name)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    sums = json.loads((tmp_path / "one/prepare.json").read_text())["sha256"]
    files = {name: content for name, content in snapshot(tmp_path / "one").items() if name.endswith(".parquet")}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    pq.write_table(pq.read_table(root / "a.parquet"), root / "a.parquet", row_group_size=2)
    prepare(params(root), tmp_path / "two")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_another_test_set_changes_only_the_tests_unless_it_leaks(root: Path, tmp_path: Path) -> None:
    prepare(params(root), tmp_path / "one")
    write(root / "more.parquet", [("A kite flies.", "A toy is in the air.", "entailment")])
    tests = {"mine": {"path": "test.parquet", "reverse_label": "back"}, "more": {"path": "more.parquet"}}
    prepare(params(root, files={"tests": tests}), tmp_path / "two")
    one, two = snapshot(tmp_path / "one"), snapshot(tmp_path / "two")
    assert {name for name in two if one.get(name) != two[name]} == {"tests/more.parquet", "prepare.json", "profile.json"}


def test_nothing_changes_when_the_last_file_is_bad(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(params(root), out)
    before = snapshot(out)
    write(root / "b.parquet", TRAIN_B[:4])  # a good change, which must not come through
    pq.write_table(pa.table({"sentence1": [""], "sentence2": [""], "score": [1.0]}), root / "sts.parquet")
    with pytest.raises(UserError, match=r"sts.parquet: no row is left of 1 for set 'graded' \(empty 1\)"):
        prepare(params(root), out)
    assert snapshot(out) == before
    shutil.rmtree(out)
    with pytest.raises(UserError):
        prepare(params(root), out)
    assert not snapshot(out)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"dev": [DEV[2]]}, "the dev part of the development set has 1, neutral only"),
        (
            {"dev": DEV},
            r"^dev.parquet: of its 3 pairs the promotion part of the development set has 0, none only \(dropped: none\)",
        ),
        ({"dev": [*DEV, PROMOTED[0]]}, "of its 4 pairs the promotion part of the development set has 1, entailment only"),
        (
            {"test": [(f" {p}", h, label) for p, h, label in DEV[:2]]},
            r"test.parquet: every pair of test set 'mine' is also in the development set;",
        ),
        ({"a": [TRAIN_A[1]], "b": [TRAIN_A[1]]}, "training has only contradiction rows"),
        ({"a": DEV[:1], "b": DEV[:1]}, r"no row is left of 2 for training \(duplicate 1, leaked_pair 1\)"),
    ],
)
def test_a_set_that_cannot_be_used_is_refused(root: Path, tmp_path: Path, files: dict[str, list[Row]], said: str) -> None:
    for name, content in files.items():
        write(root / f"{name}.parquet", content, back=[None] * len(content))
    with pytest.raises(UserError, match=said) as refused:
        prepare(params(root), tmp_path / "out")
    assert "\n" not in str(refused.value)


def run_stage(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stages.prepare"]
    environment = {"PYTHONPATH": str(PROJECT), "PATH": ""}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_stage_prints_a_summary_or_one_line_and_exits_2(root: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((PROJECT / "tests/plain.yaml").read_text(encoding="utf-8"))
    values["data"] = raw_params(root)
    # Training hypotheses that give the label away; at thresholds 0 and 1 alone the baseline calls all pairs the same.
    write(
        root / "dev.parquet", [*DEV, ("A cow eats.", "An animal moves.", "entailment"), ("A cow eats.", "A cat sits.", "neutral")]
    )
    values["evaluate"] |= {"threshold_on": {}, "threshold_step": 1.0}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    shutil.copy(PROJECT / "execution.yaml", tmp_path)
    good = run_stage(tmp_path)
    assert good.returncode == 0, good.stderr
    assert "train: 19 rows in, 8 kept; dropped: no_gold_label 2, empty 2, duplicate 2" in good.stdout
    baseline = json.loads((tmp_path / "data/prepared/profile.json").read_text(encoding="utf-8"))["hypothesis_only"]
    assert baseline["dev"]["accuracy"] == baseline["dev"]["majority_accuracy"] < 100
    # Each pair of each set is hard or not, and only the hard ones are counted as wrong.
    for name, numbers in baseline.items():
        pairs = "dev/dev" if name == "dev" else f"tests/{name}"
        hard = pq.read_table(tmp_path / f"data/prepared/hard/{name}.parquet")["hard"].to_numpy()
        assert len(hard) == pq.read_metadata(tmp_path / f"data/prepared/{pairs}.parquet").num_rows
        assert numbers["accuracy"] == pytest.approx(100 * np.mean(~hard), abs=1e-4)
    write(root / "b.parquet", [*TRAIN_B, ("A bee hums.", "An insect hums.", "yes")])
    bad = run_stage(tmp_path)
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    assert "b.parquet: row 10: label is 'yes'" in bad.stderr


def test_two_classes_without_contradictions_fail_here_and_not_in_tune(root: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((PROJECT / "tests/plain.yaml").read_text(encoding="utf-8"))
    values["data"] = raw_params(root)
    for name in ("a", "b"):
        rows = pq.read_table(root / f"{name}.parquet")
        pq.write_table(rows.filter(pc.not_equal(rows["label"], "contradiction")), root / f"{name}.parquet")
    shutil.copy(PROJECT / "execution.yaml", tmp_path)
    for triplets, code in (("with-contradiction", 2), ("all", 0)):
        values["train"]["triplets"] = triplets
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
        done = run_stage(tmp_path)
        assert done.returncode == code, done.stderr
        assert ("train.triplets: with-contradiction leaves nothing to train on" in done.stderr) == (code == 2)


def test_a_large_table_spans_row_groups(tmp_path: Path) -> None:
    n = ROW_GROUP + 5
    numbers = pa.array(np.arange(n).astype(str), pa.large_string())
    table = pa.table({"premise": numbers, "hypothesis": numbers, "source": pa.repeat("x", n)})
    for name, step in (("t", n), ("u", 1_000)):
        with ParquetFile(tmp_path / f"{name}.parquet", REVERSED) as file:
            for start in range(0, n, step):
                file.write(table.slice(start, step))
            assert file.rows == n
    assert pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == 2
    assert pq.read_table(tmp_path / "t.parquet").equals(table.cast(REVERSED))
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "u.parquet").read_bytes()


def test_minimal_pairs_of_training_sentences_without_those_held_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_prepare, "_EVERYDAY", 30)
    premises = [f"A man is walking in the {place}." for place in ("park", "garden", "office")]
    swapped = [text.replace("A man", "A woman") for text in premises]
    write(root / "a.parquet", [*((text, "A woman is here now.", "entailment") for text in premises)])
    # One of the pairs that would be made is a test pair, turned round.
    write(root / "test.parquet", [(swapped[0], premises[0], "contradiction"), ("A x.", "A y.", "entailment")], back=[None] * 2)
    data = params(root, files={"train": [{"path": "a.parquet"}]}).model_copy(update={"minimal_pairs": 1000})
    report = prepare(data, tmp_path / "out")["train"]
    made = rows(tmp_path / "out/train/minimal_pairs.parquet", "premise", "hypothesis", "label", "reverse_label", "source")
    assert report["minimal_pairs"] == dict(sorted(Counter(row[4] for row in made).items()))
    assert report["minimal_pairs_leaked"] == 1
    excluded = {(p, h) for p, h, *labels in made if labels == ["contradiction", "contradiction", "co-hyponym"]}
    assert {(premises[1], swapped[1]), (premises[2], swapped[2])} <= excluded
    assert (premises[0], swapped[0]) not in {row[:2] for row in made}
    # The kinds that these sentences do not have are of everyday sentences.
    assert {row[4] for row in made if row[0] in premises} < {row[4] for row in made}
    # The same rows in another order give the same pairs.
    write(root / "a.parquet", [*((text, "A woman is here now.", "entailment") for text in reversed(premises))])
    prepare(data, tmp_path / "again")
    assert rows(tmp_path / "again/train/minimal_pairs.parquet", "premise", "hypothesis") == [row[:2] for row in made]
