"""Operation rows in stage prepare and tokenize: sets, components, what is dropped and counted, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.schema import OPERATIONS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.source_checks import check_sources
from pipeline.data.table_io import sha256_tree
from pipeline.data.token_sets import read_operations_set, read_targets
from pipeline.data.token_store import MISSING, open_store, read_rows
from pipeline.data.tokenizing import tokenize
from pipeline.families import division
from pipeline.families.operations.generated import generate_operations
from pipeline.families.prepare import prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.tracking.datasets import data_sets
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError
from tests.data.operation_rows import NAMES, PARTS, Row, connected, dev_rows, generated, many, params, read, sentences, write


def test_counts_and_components_by_hand(tmp_path: Path) -> None:
    write(
        tmp_path / "train.parquet",
        [
            # One component of two rows, over C; the third row is the second one again.
            ("fusion", "A.", "B.", "C."),
            ("compression", "C.", None, "D."),
            ("compression", " C. ", None, "D."),
            ("reconstruction", "E.", None, "E."),
            # G is in the test set, and F connects the next row to it.
            ("compression", "F.", None, "G."),
            ("difference", "H.", "I.", "F."),
        ],
    )
    write(tmp_path / "dev.parquet", dev_rows(30))
    write(tmp_path / "test.parquet", [("compression", "J.", None, "G."), ("compression", "K.", None, "L.")] * 2)
    given = params(
        tmp_path,
        operations=[{"path": "train.parquet"}],
        operations_dev={"path": "dev.parquet"},
        operations_tests={"some": {"path": "test.parquet"}},
    )
    counts = prepare(given, tmp_path / "out")["operations"]
    assert counts["train"] == {
        "file": "train.parquet",
        "rows_in": 6,
        "rows_out": 3,
        "dropped": {"duplicate": 1, "leaked": 2, "outside_share": 0},
        "operations": {"fusion": 1, "difference": 0, "compression": 1, "reconstruction": 1},
        "target_is_input": 1,
        # C and E.
        "whole_sentences": 2,
        "components": 2,
        "largest_component": 2,
        "other_than_two_parts": 0,
    }
    assert read(tmp_path / "out", "train") == [
        ("fusion", "A.", "B.", "C."),
        ("compression", "C.", None, "D."),
        ("reconstruction", "E.", None, "E."),
    ]
    assert counts["some"]["dropped"] == {"duplicate": 2, "leaked": 0, "outside_share": 0}
    assert read(tmp_path / "out", "some") == [("compression", "J.", None, "G."), ("compression", "K.", None, "L.")]
    parts = [read(tmp_path / "out", name) for name in ("dev_operations", "promotion_operations")]
    assert sorted(map(str, parts[0] + parts[1])) == sorted(map(str, dev_rows(30)))
    assert all(40 <= len(part) <= 80 for part in parts)
    assert {row["source"] for row in pq.read_table(tmp_path / "out" / NAMES["train"]).to_pylist()} == {"train"}


def test_sets_share_no_sentence_with_training(tmp_path: Path) -> None:
    train, test = many(1, 3000, 8000), many(2, 60, 8000)
    write(tmp_path / "a.parquet", train[:1000])
    write(tmp_path / "b.parquet", train[1000:])
    write(tmp_path / "test.parquet", test)
    given = params(
        tmp_path, operations=[{"path": "a.parquet"}, {"path": "b.parquet"}], operations_tests={"some": {"path": "test.parquet"}}
    )
    counts = prepare(given, tmp_path / "out")["operations"]
    written = {name: read(tmp_path / "out", name) for name in counts}
    assert set(written["some"]) == set(test)

    rows = [*train, *test]
    components = connected(rows)
    assert max(map(len, components)) > 100  # So chains of rows occur.
    leaked = {rows[k] for component in components if max(component) >= len(train) for k in component} - set(test)
    assert counts["train"]["dropped"] == {"duplicate": 0, "leaked": len(leaked), "outside_share": 0}
    assert len(leaked) > 100
    cut = [name for name in written if name != "some"]
    assert sorted(map(str, (row for name in cut for row in written[name]))) == sorted(map(str, set(train) - leaked))
    for name in written:
        # Rows of a set may be connected through rows of another set.
        own = [of_set for component in components if (of_set := {rows[k] for k in component} & set(written[name]))]
        assert (counts[name]["components"], counts[name]["largest_component"]) == (len(own), max(map(len, own)))
    texts = {name: set().union(*map(sentences, written[name])) for name in written}
    for name in cut:
        for other in written.keys() - {name}:
            assert not texts[name] & texts[other]
    # A tenth of the components is the development set, half of it the promotion part.
    shares = [counts[name]["components"] / sum(counts[other]["components"] for other in cut) for name in cut]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.03)


def test_a_row_s_set_depends_on_its_component_alone(tmp_path: Path) -> None:
    rows = many(3, 2000, 12_000)
    kept = {k for component in connected(rows)[::2] for k in component}
    parts: list[dict[Row, str]] = []
    for name, some in (("all", rows), ("half", [row for k, row in enumerate(rows) if k in kept][::-1])):
        write(tmp_path / f"{name}.parquet", some)
        prepare(params(tmp_path, operations=[{"path": f"{name}.parquet"}]), tmp_path / name)
        parts.append({row: part for part in NAMES for row in read(tmp_path / name, part)})
    assert parts[1].items() <= parts[0].items()
    assert len(parts[1]) == len(kept)
    assert set(parts[1].values()) == set(NAMES)


def test_batches_do_not_change_a_byte_and_the_first_of_equal_rows_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = many(6, 1500, 12_000)
    write(tmp_path / "first.parquet", rows)
    write(tmp_path / "again.parquet", rows[::2])
    given = params(tmp_path, operations=[{"path": "first.parquet"}, {"path": "again.parquet"}])
    counts = prepare(given, tmp_path / "large")["operations"]
    monkeypatch.setattr(division, "BATCH_ROWS", 64)
    prepare(given, tmp_path / "small")
    assert sha256_tree(tmp_path / "large") == sha256_tree(tmp_path / "small")
    assert counts["train"]["dropped"]["duplicate"] == 750
    assert sum(counts[name]["rows_out"] for name in NAMES) == 1500
    for name in NAMES.values():
        assert set(pq.read_table(tmp_path / "large" / name)["source"].to_pylist()) == {"first"}


def test_split_sentences_stay_together_and_other_numbers_of_parts_are_counted(tmp_path: Path) -> None:
    wrong = {"complex": ["One .", "A , b , c ."], "split": ["One .", "A .<::::>B .<::::>C ."]}
    complexes = [f"It rains in {k} and it pours in {k} ." for k in range(300)]
    splits = [f"It rains in {k} .<::::>It pours in {k} ." for k in range(300)]
    table = pa.table({"complex": complexes + wrong["complex"], "split": splits + wrong["split"]})
    pq.write_table(table, tmp_path / "t.parquet")
    counts = prepare(params(tmp_path, operations=[{"path": "t.parquet"}]), tmp_path / "out")["operations"]
    assert [counts[name]["other_than_two_parts"] for name in NAMES] == [2, 0, 0]
    for of_set in counts.values():
        assert [*of_set["operations"].values()] == [of_set["components"], of_set["components"], 0, 0]
        assert of_set["largest_component"] == 2
    assert sum(counts[name]["rows_out"] for name in NAMES) == 600
    pq.write_table(pa.table(wrong), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"no operation row is left to train on \(other_than_two_parts 2\); add rows of"):
        prepare(params(tmp_path, operations=[{"path": "t.parquet"}]), tmp_path / "none")


def test_generated_rows_through_prepare_and_tokenize(tmp_path: Path, tiny_backbone: Path) -> None:
    data = generated(400)
    counts = prepare(data, tmp_path / "a")["operations"]
    prepare(data, tmp_path / "b")
    assert sha256_tree(tmp_path / "a") == sha256_tree(tmp_path / "b")
    written = {name: read(tmp_path / "a", name) for name in counts}
    drawn = [(row.operation, row.a, row.b, row.target) for row in generate_operations("train", 400, data.seed)]
    assert written["train"] == drawn
    assert len(written["generated_operations"]) == 40
    assert len(written["dev_operations"]) + len(written["promotion_operations"]) == 40
    assert all(numbers["components"] == numbers["rows_out"] for numbers in counts.values())

    encoder = Encoder(name="tiny", revision=None, tokenizer=load_tokenizer(resolve(str(tiny_backbone), None)), max_length=32)
    tokenize(tmp_path / "a", tmp_path / "tokens", encoder)
    train, tests = tmp_path / "tokens/train", tmp_path / "tokens/tests"
    rows, store = read_rows(train, "operations"), open_store(train)
    assert [OPERATIONS[code] for code in rows.column("operation")] == [row[0] for row in drawn]
    for position, column in enumerate(("a", "b", "target"), 1):
        for k in (0, 1, 2, 3, 399):
            text, index = drawn[k][position], int(rows.column(column)[k])
            assert index == MISSING if text is None else store[index].tolist() == encoder.encode([text])[0].tolist()
    tokens = read_operations_set(tests, "generated_operations")
    assert (tokens.b == MISSING).tolist() == [row[2] is None for row in written["generated_operations"]]
    kept, store = read_targets(tests, "train"), open_store(tests)
    targets = dict.fromkeys((OPERATIONS.index(row[0]), row[3]) for row in drawn)
    assert kept.operation.tolist() == [code for code, _ in targets]
    for k, (_, text) in enumerate(targets):
        assert store[int(kept.sentence[k])].tolist() == encoder.encode([text])[0].tolist()
    with pytest.raises(UserError, match="has no set 'other'; it has dev_operations"):
        read_operations_set(tmp_path / "tokens/dev", "other")

    logged = {(data_set.name, data_set.context) for data_set in data_sets(read_json(tmp_path / "a/profile.json"))}
    assert {("train_operations", "training"), ("dev_operations", "validation"), ("generated_operations", "testing")} <= logged
    assert "promotion_operations" not in {name for name, _ in logged}


@pytest.mark.parametrize(
    ("train", "more", "said"),
    [
        (
            dev_rows(1),
            {},
            r"train\.parquet: its part dev_operations has 0 rows of fusion; it needs 2, .*: add rows, or name data\.files\.",
        ),
        ([], {}, r"^generated: its part dev_operations has . rows? of .*: raise data\.generated\.operations$"),
        (
            dev_rows(20),
            {"operations_dev": {"path": "one.parquet"}},
            r"one\.parquet: its part (dev|promotion)_operations has [01] rows? of \w+; it needs 2, .*: add rows$",
        ),
        (
            [("compression", f"A {k}.", None, "Same.") for k in range(9)],
            {"operations_tests": {"some": {"path": "same.parquet"}}},
            r"train\.parquet: no operation row is left to train on \(leaked 9\); add rows of sentences that are in no other set$",
        ),
        (
            dev_rows(400),
            {"operations_tests": {"some": {"path": "one.parquet"}}},
            r"one\.parquet: the set some has 1 row of compression; it needs 2, because",
        ),
    ],
)
def test_too_few_rows_are_refused(tmp_path: Path, train: list[Row], more: dict[str, Any], said: str) -> None:
    write(tmp_path / "train.parquet", train or dev_rows(1))
    write(tmp_path / "one.parquet", [("compression", "Only one.", None, "One.")])
    write(tmp_path / "same.parquet", [("compression", f"B {k}.", None, "Same.") for k in range(3)])
    with pytest.raises(UserError, match=said) as refusal:
        prepare(params(tmp_path, operations=[{"path": "train.parquet"}], **more) if train else generated(12), tmp_path / "out")
    assert "\n" not in str(refusal.value)
    assert not any((tmp_path / "out").iterdir())


def test_a_file_is_trained_on_and_tested_on_in_different_rows_only(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    train, test = ({"path": "a.parquet", "where": {"split": split}} for split in ("train", "test"))
    check_sources(params(tmp_path, operations=[train], operations_tests={"some": test}))
    said = r"data\.files\.operations_tests\.some: 'a\.parquet' is used for data\.files\.operations\.0, too"
    with pytest.raises(UserError, match=said):
        check_sources(params(tmp_path, operations=[train], operations_tests={"some": {"path": "a.parquet"}}))


def test_a_share_of_a_file_is_a_test_set_and_the_rest_is_trained_on(tmp_path: Path) -> None:
    rows = many(11, 6000, 30_000)
    write(tmp_path / "a.parquet", rows)
    files = {"operations": [{"path": "a.parquet"}], "operations_tests": {"some": {"path": "a.parquet", "share": 0.2}}}
    data = params(tmp_path, **files)
    check_sources(data)
    counts = prepare(data, tmp_path / "out")["operations"]
    of_set = {name: read(tmp_path / "out", name) for name in counts}
    component = {rows[k]: number for number, part in enumerate(connected(rows)) for k in part}
    held = {component[row] for row in of_set["some"]}
    assert held.isdisjoint(component[row] for name in ("train", *PARTS) for row in of_set[name])
    assert sorted(row for rows_of_set in of_set.values() for row in rows_of_set) == sorted(rows)
    assert len(held) == pytest.approx(0.2 * len(set(component.values())), rel=0.15)
    assert counts["some"]["dropped"]["outside_share"] == len(rows) - len(of_set["some"])
    assert counts["train"]["dropped"]["leaked"] == len(of_set["some"])
    # Other numbers decide which of the rest is the development set.
    assert len({component[row] for name in PARTS for row in of_set[name]}) == pytest.approx(
        0.08 * len(set(component.values())), rel=0.3
    )
