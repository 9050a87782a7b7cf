"""Generated operations: their answers follow from the words alone."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from itertools import islice
from typing import get_args

import pytest

from pipeline.data.generated.premises import Split, premises_of
from pipeline.data.schema import OPERATIONS, TWO_INPUTS
from pipeline.families.operations import generated as operations
from pipeline.families.operations.generated import OperationRow, generate_operations

ROWS = 2000


@pytest.fixture(scope="module")
def rows() -> list[OperationRow]:
    return list(generate_operations("train", ROWS, 1))


def words(sentence: str) -> Counter[str]:
    """The words, with every article the same."""
    text = re.sub(r"\b(an|the)\b", "a", sentence.lower().rstrip("."))
    return Counter(re.findall(r"[\w'-]+", text))


def test_operations_come_in_turn_with_the_inputs_they_need(rows: list[OperationRow]) -> None:
    assert [row.operation for row in rows] == [OPERATIONS[i % 4] for i in range(ROWS)]
    assert all((row.b is not None) == (row.operation in TWO_INPUTS) for row in rows)
    assert all(row.target not in (row.a, row.b) for row in rows)


def test_what_two_sentences_share_is_subject_and_action(rows: list[OperationRow]) -> None:
    for row in rows:
        if row.b is None:
            continue
        whole, other = (row.target, row.a) if row.operation == "fusion" else (row.a, row.target)
        a, b = words(row.b), words(other)
        shared = a + b - words(whole)
        # Both say all that is shared and something of their own, and nothing of the whole is lost.
        assert shared < a
        assert shared < b
        assert a + b == words(whole) + shared


def test_compression_keeps_a_part_and_reconstruction_all(rows: list[OperationRow]) -> None:
    for row in rows:
        if row.operation == "compression":
            assert words(row.target) < words(row.a)
        if row.operation == "reconstruction":
            added = words(row.a) - words(row.target)
            assert words(row.target) <= words(row.a)
            assert set(added) <= {"there", "it", "is", "true", "that"}


def test_a_row_depends_on_split_and_seed_alone(rows: list[OperationRow]) -> None:
    assert list(generate_operations("train", 300, 1)) == rows[:300]
    assert list(islice(generate_operations("train", 300, 2), 100)) != rows[:100]
    # Stable across processes and versions of Python.
    digest = hashlib.sha256("\n".join(f"{row.a}|{row.b}|{row.target}" for row in rows[:50]).encode()).hexdigest()
    assert digest[:12] == "6c9b552de708"


def whole(row: OperationRow) -> str:
    """The sentence with all facts, in the present tense and without its first article."""
    text = row.target if row.operation in ("fusion", "reconstruction") else row.a
    return re.sub(r" was ", " is ", text).partition(" ")[2]


def test_every_scene_is_in_one_split_and_once(rows: list[OperationRow]) -> None:
    scenes = {split: [whole(row) for row in generate_operations(split, 1500, 3)] for split in get_args(Split)}
    for drawn in scenes.values():
        assert len(set(drawn)) == len(drawn)
    train, dev, test = (set(drawn) for drawn in scenes.values())
    assert not train & dev
    assert not (train | {whole(row) for row in rows}) & test


def test_more_rows_than_scenes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(islice(premises_of("dev", random.Random(1), 1), 40))
    monkeypatch.setattr(operations, "premises_of", lambda *_: iter(few))
    with pytest.raises(ValueError, match=r"the dev split has no more scenes with two facts: \d+ of 40 rows are missing"):
        list(generate_operations("dev", 40, 1))
