"""Running text: which files are documents, where paragraphs and sentences end, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.families.text.documents import Document, read_documents, sentences_of
from pipeline.utils.errors import UserError


def read(*paths: Path, text: str = "text", document: str | None = None) -> list[Document]:
    return list(read_documents(paths, text=text, document=document))


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        (
            'Dr. Smith said: "No!"  He left at 5 p.m. on Jan. 3.\tU.S. troops came. Was it so?',
            ['Dr. Smith said: "No!"', "He left at 5 p.m. on Jan. 3.", "U.S. troops came.", "Was it so?"],
        ),
        ("They didn't go -- it's 3.5 km (or so) to the co-op. \u201cYes,\u201d he said\u2026 Naïve e-mail: a@b.example!", None),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_say(paragraph: str, sentences: list[str] | None) -> None:
    found = sentences_of(paragraph)
    # Nothing of a text is lost or changed.
    assert " ".join(found) == " ".join(paragraph.split())
    assert sentences in (None, found)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("CHAPTER I\nOne day it\nrained. It was cold.\r\n", ["CHAPTER I", "One day it", "rained.", "It was cold."]),
        # With empty lines, the other line breaks are spaces.
        ("CHAPTER I\n\nOne day it\nrained. It was\ncold.\n \nEnd", ["CHAPTER I", "One day it rained.", "It was cold.", "End"]),
    ],
)
def test_a_text_file_is_a_document_of_paragraphs(tmp_path: Path, text: str, sentences: list[str]) -> None:
    file = tmp_path / "book.txt"
    file.write_text(text, encoding="utf-8")
    assert read(file) == [Document(str(file), sentences)]


@pytest.mark.parametrize(
    "text", ["\n\nthe cat sat\nthe dog ran\n\n", "the cat sat\r\nthe dog ran\r\n\r\n", "the cat sat\nthe dog ran"]
)
def test_empty_lines_at_the_edges_say_nothing_about_the_others(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.TXT").write_text(text)
    pq.write_table(pa.table({"text": pa.array([text]).dictionary_encode()}), tmp_path / "a.parquet")
    for name in ("", "a.parquet"):
        (document,) = read(tmp_path / name)
        assert document.sentences == ["the cat sat", "the dog ran"]


def test_what_comes_after_the_first_megabyte_does_not_decide(tmp_path: Path) -> None:
    line = "the cat sat on a mat " * 50
    (tmp_path / "a.txt").write_text(f"{line}\n" * 1_000 + "\nthe dog ran\n")
    (document,) = read(tmp_path)
    assert document.sentences == [line.strip()] * 1_000 + ["the dog ran"]


def test_a_folder_is_its_text_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="has no text file"):
        read(tmp_path)
    (tmp_path / "b/two.txt.gz").write_bytes(gzip.compress(b"Two."))
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "c.md").write_text("Not this.")
    assert [document.sentences for document in read(tmp_path)] == [["One."], ["Two."]]


def test_every_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    texts = ["One. Two.", "Chapter I\r\n\r\nThe cat\r\nsat\r\n \r\nThe dog ran", "\u200e"]
    pq.write_table(pa.table({"text": texts, "id": [1, 2, 3]}), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet")
    assert [document.sentences for document in found] == [["One.", "Two."], ["Chapter I", "The cat sat", "The dog ran"], []]
    assert found[1].name == f"{tmp_path / 't.parquet'}: row 2"


def test_rows_with_the_same_value_are_one_document(tmp_path: Path) -> None:
    table = {"body": ["One. Two.", "Three.", "Four."], "article": [7, 7, 8]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet", text="body", document="article")
    assert [document.sentences for document in found] == [["One.", "Two.", "Three."], ["Four."]]
    pq.write_table(pa.table({name: values + values[:1] for name, values in table.items()}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"t\.parquet: row 4: article 7 had ended before; put the rows of a document together$"):
        read(tmp_path / "t.parquet", text="body", document="article")
    # NaN is a missing value, not a document of that name.
    for articles in (["a", ""], ["a", None], [7.0, float("nan")]):
        pq.write_table(pa.table({"body": ["One.", "Two."], "article": articles}), tmp_path / "t.parquet")
        with pytest.raises(UserError, match=r"t\.parquet: row 2: article is missing"):
            read(tmp_path / "t.parquet", text="body", document="article")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, r"missing\.txt: no such file or folder$"),
        ("latin.txt", b"One.\nCaf\xe9.", r"latin\.txt: line 2: not valid UTF-8"),
        ("long.txt", b"a " * 20_000_001, r"long\.txt: line 1: a line of more than 10,000,000 characters"),
        (
            "wrapped.txt",
            b"One.\n\n" + b"and so on\n" * 1_000_001,
            r"wrapped\.txt: a paragraph of more than 10,000,000 characters",
        ),
        ("t.csv", b"texts,id\nOne.,1\n", r"t\.csv: no column 'text'; it has texts, id: "),
        ("t.jsonl", b'{"text": "One."}\n{"text": null}\n', r"t\.jsonl: row 2: text is missing"),
    ],
)
def test_a_fault_is_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
