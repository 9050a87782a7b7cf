"""The development set is divided by a hash of the premise into a part that chooses models and a part that promotes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.data.split import in_promotion
from pipeline.families.prepare import prepare
from tests.data.small_corpus import DEV, PROMOTED, TRAIN_B, params, rows, write, write_corpus


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "raw")


# SHA-256 of the premise, its first 64 bits as a number in [0, 1), computed with another tool: sha256sum.
PLACES = {
    "A canoe glides.": 0.1271,
    "A ship lies at anchor.": 0.4158,
    "A fox jumps.": 0.4340,
    "A ship leaves.": 0.6156,
    "A dog runs.": 0.6302,
    "A kite flies.": 0.7594,
    "Ein Hund läuft.": 0.8397,
    "A ship sails.": 0.9448,
}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_hash_of_the_premise_alone_says_which_part_a_pair_is_in(share: float) -> None:
    assert in_promotion(list(PLACES), share).tolist() == [place < share for place in PLACES.values()]
    # Other premises do not matter, nor does white space, which the leak rules ignore too. Case does.
    assert [in_promotion([premise], share)[0] for premise in PLACES] == in_promotion(list(PLACES), share).tolist()
    spaced = [f"\t{premise.replace(' ', chr(0xA0) + chr(0x85) + ' ')}\n" for premise in PLACES]
    assert in_promotion(spaced, share).tolist() == in_promotion(list(PLACES), share).tolist()
    assert in_promotion(["A ship sails.", "A SHIP SAILS."], 0.5).tolist() == [False, True]


def test_the_share_of_many_premises_is_the_one_asked_for() -> None:
    premises = [f"premise {number}" for number in range(20_000)]
    found = in_promotion(premises, 0.3)
    assert found.mean() == pytest.approx(0.3, abs=0.01)
    # A larger share keeps the pairs of a smaller one.
    assert (found <= in_promotion(premises, 0.5)).all()


def test_the_two_parts_of_the_development_set(root: Path, tmp_path: Path) -> None:
    write(root / "b.parquet", [*TRAIN_B, ("A canoe glides.", "A boat moves.", "neutral"), ("A canoe glides.", "So.", "neutral")])
    report = prepare(params(root), tmp_path / "out")
    kept = [(" ".join((p or "").split(" ")).strip(), h, label) for p, h, label in PROMOTED[:2]]
    assert rows(tmp_path / "out/promotion/promotion.parquet", "premise", "hypothesis", "label") == kept
    assert rows(tmp_path / "out/dev/dev.parquet", "premise", "hypothesis", "label") == DEV[:3]
    part = report["promotion"]
    assert (part["rows_in"], part["rows_out"], part["dropped"]["no_gold_label"]) == (3, 2, 1)
    assert part["labels"] == {"entailment": 1, "neutral": 0, "contradiction": 1}
    # Pairs in either part are dropped from training.
    assert report["train"]["files"]["b.parquet"]["dropped"]["leaked_pair"] == 2
    assert report["train"]["files"]["b.parquet"]["dropped"]["leaked_premise"] == 3
