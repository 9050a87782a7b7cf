"""Running text and transfer tasks in stage prepare and tokenize: sets, counts, what is dropped, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from copies import PLAIN

from pipeline.config.load import load_params
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.table_io import sha256_tree
from pipeline.data.token_sets import TaskSet, TextSet, read_task, read_text, set_names
from pipeline.data.token_store import open_store, read_rows
from pipeline.data.tokenizing import tokenize
from pipeline.families.prepare import prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.utils.errors import UserError
from tests.data.operation_rows import params


def tokenizer_of(backbone: Path) -> Encoder:
    tokenizer = load_tokenizer(resolve(str(backbone), None))
    return Encoder(name="tiny", revision=None, tokenizer=tokenizer, max_length=32)


def story(name: str, sentences: int) -> str:
    return " ".join(f"The {name} saw house number {k}." for k in range(sentences))


def table(path: Path, texts: Sequence[str], **columns: Sequence[Any]) -> None:
    pq.write_table(pa.table({"text": list(texts), **columns}), path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """600 different reviews of 12 sentences; one of a single sentence, one twice, and one that is in the test set."""
    folder = tmp_path / "raw"
    folder.mkdir()
    reviews = [story(f"visitor{k}", 12) for k in range(600)]
    table(folder / "reviews.parquet", [*reviews, "Only one sentence.", reviews[3], story("stranger", 80)])
    table(folder / "test.parquet", [story("stranger", 80), story("guest", 3)])
    return folder


def by_document(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    documents: dict[int, list[str]] = {}
    for row in rows:
        documents.setdefault(row["document"], []).append(row["sentence"])
        assert row["position"] == len(documents[row["document"]]) - 1
    return documents


def test_sets_are_cut_and_every_dropped_document_is_counted(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    report = prepare(params(root, text=[{"path": "reviews.parquet"}], text_tests={"some": {"path": "test.parquet"}}), out)
    files = {
        "train": out / "train/documents.parquet",
        "dev_text": out / "dev/dev_text.text.parquet",
        "promotion_text": out / "promotion/promotion_text.text.parquet",
        "some": out / "tests/some.text.parquet",
    }
    documents = {name: by_document(pq.read_table(path).to_pylist()) for name, path in files.items()}
    assert [len(document) for document in documents["some"].values()] == [80, 3]
    for name, found in documents.items():
        assert list(found) == list(range(len(found)))
        counts = report["text"][name]
        assert (counts["documents_out"], counts["sentences"]) == (len(found), sum(map(len, found.values())))
    assert report["text"]["train"]["dropped"] == {"single_sentence": 1, "duplicate": 1, "leaked": 1}
    kept = [tuple(d) for name in ("train", "dev_text", "promotion_text") for d in documents[name].values()]
    assert len(kept) == len(set(kept)) == 600
    assert 40 <= len(documents["dev_text"]) + len(documents["promotion_text"]) <= 100
    source = pq.read_table(files["train"]).to_pylist()[0]["source"]
    assert source == f"{root / 'reviews.parquet'}: row 1"


def test_repeats_and_boilerplate_are_counted(root: Path, tmp_path: Path) -> None:
    # Three documents make boilerplate; two do not, nor does a repetition in one.
    licence, motto = "All rights are reserved by the house. ", "Only the brave read on. "
    texts = [
        licence * (k < 3) + motto * (k > 3) + story(f"reader{k}", 40) + " The end came. The end came. The end came." * (k == 1)
        for k in range(6)
    ]
    table(root / "books.parquet", texts)
    table(root / "dev.parquet", [story(f"critic{k}", 20) + " The end came." for k in range(70)])
    report = prepare(params(root, text=[{"path": "books.parquet"}], text_dev={"path": "dev.parquet"}), tmp_path / "prepared")
    train, dev, promotion = (report["text"][name] for name in ("train", "dev_text", "promotion_text"))
    sentences = Counter(row["sentence"] for row in pq.read_table(tmp_path / "prepared/train/documents.parquet").to_pylist())
    assert train["repeated_sentences"] == sum(n - 1 for n in sentences.values()) == 5
    assert (train["boilerplate_sentences"], train["sentences"]) == (3, sentences.total())
    assert dev["sentences_in_train"] + promotion["sentences_in_train"] == 70
    assert dev["documents_out"] + promotion["documents_out"] == 70


def test_the_same_input_gives_the_same_bytes_and_order_does_not_move_a_document(root: Path, tmp_path: Path) -> None:
    given = params(root, text=[{"path": "reviews.parquet"}])
    for name in ("a", "b"):
        prepare(given, tmp_path / name)
    assert sha256_tree(tmp_path / "a") == sha256_tree(tmp_path / "b")
    texts = pq.read_table(root / "reviews.parquet")["text"].to_pylist()
    table(root / "reviews.parquet", texts[::-1])
    prepare(given, tmp_path / "c")
    part = "dev/dev_text.text.parquet"
    held = [{tuple(d) for d in by_document(pq.read_table(tmp_path / name / part).to_pylist()).values()} for name in ("a", "c")]
    assert held[0] == held[1]


def test_token_stores_keep_documents_and_positions(root: Path, tmp_path: Path, tiny_backbone: Path) -> None:
    tasks = {"colours": {"path": "colours.parquet"}, "pairs": {"path": "pairs.csv"}}
    table(root / "colours.parquet", ["red one", "blue one"] * 20, label=["warm", "cold"] * 20)
    rows = "".join(f"a {k},b {k},{k % 2},{part}\n" for k, part in enumerate(["train"] * 24 + ["test"] * 6))
    (root / "pairs.csv").write_text(f"sentence1,sentence2,label,split\n{rows}")
    given = params(root, text=[{"path": "reviews.parquet"}], text_tests={"some": {"path": "test.parquet"}}, tasks=tasks)
    prepare(given, tmp_path / "prepared")
    tokenize(tmp_path / "prepared", tmp_path / "tokens", tokenizer_of(tiny_backbone))
    train, tests = tmp_path / "tokens/train", tmp_path / "tokens/tests"
    rows_found, prepared = read_rows(train, "documents"), pq.read_table(tmp_path / "prepared/train/documents.parquet").to_pylist()
    for column in ("document", "position"):
        assert rows_found.column(column).tolist() == [row[column] for row in prepared]
    store = open_store(train)
    first = rows_found.column("sentence")[5]
    assert store[int(first)].tolist() == tokenizer_of(tiny_backbone).encode([prepared[5]["sentence"]])[0].tolist()
    assert set_names(tests, TextSet) == ("some",)
    assert set_names(tests, TaskSet) == ("colours", "pairs")
    assert np.bincount(read_text(tests, "some").document).tolist() == [80, 3]
    colours, pairs = (read_task(tests, name) for name in ("colours", "pairs"))
    assert (colours.part, colours.label.tolist()) == (None, [1, 0] * 20)
    assert pairs.part is not None
    assert (np.bincount(pairs.part).tolist(), len(pairs.texts)) == ([24, 0, 6], 2)


def test_generated_documents_go_with_generated_pairs(tmp_path: Path) -> None:
    given = load_params(PLAIN).data
    given = given.model_copy(update={"generated": given.generated.model_copy(update={"documents": 500})})
    text = prepare(given, tmp_path / "prepared")["text"]
    assert [text[name]["documents_out"] for name in ("train", "generated_text")] == [500, 50]
    assert (tmp_path / "prepared/train/triplets.parquet").is_file()


@pytest.mark.parametrize(
    ("texts", "files", "said"),
    [
        (
            ["One sentence.", "Another one."],
            {},
            r"no document is left to train on \(single_sentence 2\): add documents, or name ",
        ),
        # A hash of the text decides on which side a single document is.
        ([story("king", 300)], {}, "has 0 documents with 0 pairs of neighbouring sentences; .*: add documents, or name data"),
        ([story("king39", 300)], {}, r"no document is left to train on \(drawn_for_development 1\): add documents, or name data"),
        (
            [story("king", 300)],
            {"text_dev": {"path": "short.parquet"}},
            "short.parquet: its part (dev|promotion)_text .*: add documents; data.promotion_share keeps some of them",
        ),
        (
            [story("king", 300)],
            {"text_dev": {"path": "dev.parquet"}},
            r"dev\.parquet: its part promotion_text has . documents .* it needs 20 documents: add",
        ),
    ],
)
def test_too_little_text_is_refused(tmp_path: Path, texts: list[str], files: dict[str, Any], said: str) -> None:
    table(tmp_path / "text.parquet", texts)
    table(tmp_path / "short.parquet", [story("queen", 9)])
    table(tmp_path / "dev.parquet", [story(f"queen{k}", 150) for k in range(12)])
    with pytest.raises(UserError, match=said):
        prepare(params(tmp_path, text=[{"path": "text.parquet"}], **files), tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_file_outside_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    table(tmp_path / "outside.parquet", [story("guest", 90)], label=["a"])
    spec = {"path": "../outside.parquet"}
    for files in ({"text": [spec]}, {"text": [{"path": "reviews.parquet"}], "tasks": {"some": spec}}):
        with pytest.raises(UserError, match=r"outside\.parquet: is outside data.root"):
            prepare(params(root, **files), tmp_path / "out")


def test_a_task_that_cannot_be_folded_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    table(root / "rare.parquet", ["a", "b"] * 3, label=["x", "y"] * 3)

    given = params(root, text=[{"path": "reviews.parquet"}], tasks={"rare": {"path": "rare.parquet"}})
    with pytest.raises(UserError, match="rare"):
        prepare(given, tmp_path / "out", load_params(PLAIN).evaluate)
    assert not (tmp_path / "out/prepare.json").exists()
