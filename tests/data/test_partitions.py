"""Stages prepare and tokenize by partitions give the bytes of one process, whatever the number of partitions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import DataParams
from pipeline.data.generated.everyday import everyday_sentences
from pipeline.data.schema import LABELS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.table_io import sha256_tree
from pipeline.data.tokenizing import tokenize
from pipeline.families.pairs import partitions
from pipeline.families.pairs import prepare as pairs_prepare
from pipeline.families.prepare import prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.storage.exchange import Exchange
from pipeline.storage.object_store import private_folder, share
from pipeline.utils.errors import UserError


class Here:
    """A cluster that is this process; what passes between tasks is JSON, as elsewhere."""

    def __init__(self, storage: Path | str, parts: int) -> None:
        self.storage, self.exchange, self.parts = str(storage), Exchange(str(storage), "work/here"), parts
        self.tasks: list[str] = []

    def share(self, path: Path) -> str:
        return share(path, self.storage)

    def run(self, task: Callable[..., Any], items: Sequence[dict[str, Any]], **fixed: Any) -> list[Any]:
        self.tasks += [task.__name__] * len(items)
        sent = json.loads(json.dumps([*items]))
        # In any order.
        done = {
            item["number"]: task(**item, **fixed, exchange=self.exchange) for item in random.Random(4).sample(sent, len(sent))
        }
        return json.loads(json.dumps([done[item["number"]] for item in items]))


def rows(number: int, seed: int, premises: int) -> list[dict[str, Any]]:
    """Few sentences in many pairs: duplicates, contradictory labels, pairs turned round, several partners of a premise."""
    draw = random.Random(seed)
    known = [*dict.fromkeys(sentence for _, sentence in zip(range(premises), everyday_sentences("train", 3), strict=False))]
    made: list[dict[str, Any]] = []
    for _ in range(number):
        premise, hypothesis = draw.choice(known), draw.choice(known)
        made.append(
            {
                # The same sentence to a reader.
                "premise": draw.choice([premise, premise.replace(" ", "  ", 1), f" {premise}"]),
                "hypothesis": draw.choice([hypothesis] * 20 + ["", "\u200b"]),
                "label": draw.choice([*LABELS] * 4 + ["-"]),
                "entailment_ba": draw.choice([*LABELS, None, None, None]),
                "part": draw.choice("ab"),
            }
        )
    return made


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_CHUNK", 128)
    monkeypatch.setattr(pairs_prepare, "_EVERYDAY", 30)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    schema = pa.schema([(name, pa.string()) for name in ("premise", "hypothesis", "label", "entailment_ba", "part")])
    pq.write_table(pa.Table.from_pylist(rows(700, 1, 60), schema=schema), folder / "a.parquet", row_group_size=90)
    (folder / "sub").mkdir()
    (folder / "sub/b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(300, 2, 60)), encoding="utf-8")
    for name, seed in (("dev", 3), ("test", 4)):
        pq.write_table(pa.Table.from_pylist(rows(120, seed, 200), schema=schema), folder / f"{name}.parquet")
    graded = [{"sentence1": row["premise"], "sentence2": row["hypothesis"], "score": 1.5} for row in rows(9, 5, 60)]
    pq.write_table(pa.Table.from_pylist(graded), folder / "graded.parquet")
    return folder


def params(raw: Path, **files: Any) -> DataParams:
    train = [
        {"path": "a.parquet", "where": {"part": "a"}},
        # As people write paths.
        {"path": "sub/../sub/b.jsonl"},
        {"path": "a.parquet", "where": {"part": "b"}},
    ]
    sets = {"train": train, "dev": {"path": "dev.parquet"}, "tests": {"other": {"path": "test.parquet"}}}
    sets |= {"sts": {"graded": {"path": "graded.parquet"}}, **files}
    given = {"source": "files", "root": str(raw), "seed": 5, "unlabelled": "drop", "promotion_share": 0.4, "minimal_pairs": 40}
    sizes = {"train": 1, "dev": 1, "test": 1}
    return DataParams.model_validate_json(json.dumps({**given, "files": sets, "generated": sizes}))


def prepared(raw: Path, out: Path, spread: Here | None = None) -> dict[str, str]:
    out.mkdir(parents=True)
    prepare(params(raw), out, None, spread)
    return sha256_tree(out)


@pytest.mark.parametrize("parts", [1, 2, 16])
def test_prepared_data_are_those_of_one_process(raw: Path, tmp_path: Path, parts: int) -> None:
    spread = Here(tmp_path / "storage", parts)
    alone = prepared(raw, tmp_path / "alone")
    assert prepared(raw, tmp_path / "spread", spread) == alone
    # Two files by their row groups, and one whole; some of it in several chunks.
    assert spread.tasks.count("_read") > 6
    assert spread.tasks.count("_decide") == parts
    # Everything that is counted occurs.
    report = json.loads((tmp_path / "alone/prepare.json").read_text(encoding="utf-8"))["train"]
    assert all(report["dropped"].values()), report["dropped"]
    graded = json.loads((tmp_path / "alone/prepare.json").read_text(encoding="utf-8"))["sts"]["graded"]
    assert graded["sentences_in_train"] < graded["sentences"]
    assert min(report["two_way"], report["triplets_with_contradiction"], sum(report["minimal_pairs"].values())) > 0


@pytest.mark.parametrize("parts", [1, 8])
def test_token_stores_are_those_of_one_process(raw: Path, tiny_backbone: Path, tmp_path: Path, parts: int) -> None:
    prepared(raw, tmp_path / "prepared")
    for file in (tmp_path / "prepared/train").glob("*.parquet"):
        pq.write_table(pq.read_table(file), file, row_group_size=37)
    tokenizer = load_tokenizer(resolve(str(tiny_backbone), None))
    encoder, spread = Encoder(name="tiny", revision=None, tokenizer=tokenizer, max_length=8), Here(tmp_path / "storage", parts)
    tokenize(tmp_path / "prepared", tmp_path / "alone", encoder, 50)
    tokenize(tmp_path / "prepared", tmp_path / "spread", encoder, 50, spread=spread)
    assert sha256_tree(tmp_path / "spread") == sha256_tree(tmp_path / "alone")
    assert spread.tasks.count("_rows") > 5


def test_the_storage_may_be_s3(raw: Path, tiny_backbone: Path, tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a node keeps what it downloads.
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    tokenizer = load_tokenizer(resolve(str(tiny_backbone), None))
    encoder = Encoder(name="tiny", revision=None, tokenizer=tokenizer, max_length=8)
    assert prepared(raw, tmp_path / "spread", Here(s3, 2)) == prepared(raw, tmp_path / "alone")
    for name, spread in (("alone", None), ("spread", Here(s3, 2))):
        tokenize(tmp_path / name, tmp_path / f"tokens-{name}", encoder, spread=spread)
    assert sha256_tree(tmp_path / "tokens-spread") == sha256_tree(tmp_path / "tokens-alone")
    # Of raw files a node fetches those whole that are read as a whole, and reads what it needs of the others.
    fetched = [path.read_bytes() for path in (private_folder() / "objects").rglob("*") if path.is_file()]
    assert (raw / "sub/b.jsonl").read_bytes() in fetched
    assert (raw / "a.parquet").read_bytes() not in fetched


def test_a_wrong_row_is_named_by_its_number_in_the_file(raw: Path, tmp_path: Path) -> None:
    table = pq.read_table(raw / "a.parquet").to_pylist()
    table[399]["label"] = "perhaps"
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "bad.parquet", row_group_size=90)
    for name in ("dev", "test", "graded"):
        (tmp_path / f"{name}.parquet").symlink_to(raw / f"{name}.parquet")
    asked = params(tmp_path, train=[{"path": "bad.parquet"}])
    for spread in (None, Here(tmp_path / "storage", 2)):
        out = tmp_path / f"out-{spread is None}"
        out.mkdir()
        with pytest.raises(UserError, match=r"^bad\.parquet: row 400: label is 'perhaps'; labels are "):
            prepare(asked, out, None, spread)
        assert not (out / "prepare.json").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"where": {"part": "c"}}, "a.parquet: no row has part: c; correct where in params.yaml"),
        ({"premise": "number"}, "a.parquet: column 'number' holds only numbers ('1', …); name the column of text"),
    ],
)
def test_what_only_the_whole_file_shows_is_checked(raw: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    table = pq.read_table(raw / "a.parquet")
    numbers = pa.array([str(number) for number in range(1, len(table) + 1)])
    pq.write_table(table.append_column("number", numbers), tmp_path / "a.parquet", row_group_size=90)
    for name in ("dev", "test", "graded"):
        (tmp_path / f"{name}.parquet").symlink_to(raw / f"{name}.parquet")
    named = {"premise": "premise", "hypothesis": "hypothesis", "label": "label"} | {
        k: v for k, v in change.items() if k != "where"
    }
    asked = params(tmp_path, train=[{"path": "a.parquet", **named, "where": change.get("where", {})}])
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError) as error:
        prepare(asked, tmp_path / "out", None, Here(tmp_path / "storage", 2))
    assert str(error.value) == said


def test_a_part_of_a_file_may_have_only_numbers(raw: Path, tmp_path: Path) -> None:
    table = pq.read_table(raw / "a.parquet").to_pylist()
    for number in range(180):
        table[number]["premise"] = str(number)
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "a.parquet", row_group_size=90)
    for name in ("dev", "test", "graded"):
        (tmp_path / f"{name}.parquet").symlink_to(raw / f"{name}.parquet")
    asked = params(tmp_path, train=[{"path": "a.parquet"}])
    sums: list[dict[str, str]] = []
    for spread in (None, Here(tmp_path / "storage", 2)):
        out = tmp_path / f"out-{spread is None}"
        out.mkdir()
        prepare(asked, out, None, spread)
        sums.append(sha256_tree(out))
    assert sums[0] == sums[1]


def test_what_a_task_has_finished_is_not_done_again(tmp_path: Path) -> None:
    exchange, calls = Exchange(str(tmp_path), "work/here"), list[int]()

    def work() -> dict[str, int]:
        calls.append(1)
        if len(calls) == 1:
            raise UserError("the disk is full")
        return {"rows": 3}

    with pytest.raises(UserError, match="the disk is full"):
        exchange.once("read-0", work)
    assert exchange.once("read-0", work) == exchange.once("read-0", work) == {"rows": 3}
    assert len(calls) == 2


def test_batches_keep_their_numbers_also_without_rows(tmp_path: Path) -> None:
    exchange, schema = Exchange(str(tmp_path), "work/here"), pa.schema([("row", pa.int64())])
    for name in ("a", "b"):
        exchange.write(name, schema, [pa.table({"row": values}) for values in ([1, 2], pa.array([], pa.int64()), [3])])
    assert [table["row"].to_pylist() for table in exchange.batches("a")] == [[1, 2], [], [3]]
    assert exchange.read(["a", "b"], 2)["row"].to_pylist() == [3, 3]
    assert [len(table) for table in exchange.each(["a", "b"], 1)] == [0, 0]
