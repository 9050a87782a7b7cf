"""Damaged input of every kind: either it is read and every row accounted for, or one clear line says what is wrong.

Seeded, so that a failure repeats: the message of a failed assertion names the fixture, the mutation and the round.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config.data_params import DataParams
from pipeline.families.prepare import prepare
from pipeline.utils.errors import UserError
from tests.data import small_corpus
from tests.data.fixtures import write_fixtures
from tests.data.small_corpus import snapshot

FIXTURES = 18
# One premise for each part of the development set.
DEV = """\
premise,hypothesis,label
A lark sings.,A bird sings.,entailment
A lark sings.,A lark is mute.,contradiction
A gull sings.,A bird sings.,entailment
A gull sings.,A gull is mute.,contradiction
"""

Mutation = Callable[[bytes, random.Random], bytes]


def insert(what: bytes) -> Mutation:
    def mutate(data: bytes, r: random.Random) -> bytes:
        at = r.randrange(len(data) + 1)
        return data[:at] + what + data[at:]

    return mutate


def flip(data: bytes, r: random.Random) -> bytes:
    changed = bytearray(data)
    changed[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return bytes(changed)


def delete(data: bytes, r: random.Random) -> bytes:
    start = r.randrange(len(data))
    return data[:start] + data[start + r.randrange(1, 60) :]


MUTATIONS: dict[str, Mutation] = {
    "empty": lambda data, r: b"",
    "cut": lambda data, r: data[: r.randrange(1, len(data))],
    "headless": lambda data, r: data[r.randrange(1, len(data)) :],
    "flip": flip,
    "delete": delete,
    "noise": lambda data, r: insert(r.randbytes(r.randrange(1, 40)))(data, r),
    "quote": insert(b'"'),
    "separator": lambda data, r: insert(r.choice([b",", b"\t", b"\n", b"{", b"\\"]))(data, r),
    "long": insert(b"word " * 20_000),
    "label": lambda data, r: data.replace(b"neutral", b"maybe", 1).replace(b"NEUTRAL", b"MAYBE", 1),
    "packed": lambda data, r: gzip.compress(data, mtime=0),
}


def params(root: Path, train: Path) -> DataParams:
    files = {"train": [{"path": train.relative_to(root).as_posix()}], "dev": {"path": "dev.csv"}, "tests": {}, "sts": {}}
    return small_corpus.params(root, files=files)


def accounted(report: dict[str, Any], out: Path) -> bool:
    """Every row that came in is written or counted, and nothing but clean text is written."""
    train = report["train"]
    pairs = pq.read_table(out / "train/pairs.parquet")
    triplets = pq.read_table(out / "train/triplets.parquet")
    pairs.validate(full=True)
    texts = [text for column in ("premise", "hypothesis") for text in pairs[column].to_pylist()]
    return (
        train["rows_in"] == train["rows_out"] + sum(train["dropped"].values())
        and train["rows_out"] == pairs.num_rows > 0
        and triplets.num_rows == pairs["label"].to_pylist().count("entailment") > 0
        and all(text and text == text.strip() and "\0" not in text for text in texts)
    )


@pytest.mark.faults
@pytest.mark.parametrize("number", range(FIXTURES))
def test_a_damaged_file_is_read_in_full_or_refused_in_one_line(number: int, tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    whole = write_fixtures(root)[number]
    (root / "dev.csv").write_text(DEV, encoding="utf-8")
    prepare(params(root, whole), out)
    first = before = snapshot(out)
    refused = 0
    for round_, (name, mutate) in enumerate(MUTATIONS.items()):
        r = random.Random(f"{number} {round_}")
        data = whole.read_bytes()
        whole.write_bytes(mutate(data, r))
        case = f"{whole.name}: {name}, round {round_}"
        try:
            report = prepare(params(root, whole), out)
            assert accounted(report, out), case
            before = snapshot(out)
        except UserError as error:
            refused += 1
            said = str(error)
            assert "\n" not in said, case
            assert len(said) < 600, case
            assert whole.name in said or said.startswith("training has"), f"{case}: {said}"
            assert snapshot(out) == before, case
        finally:
            whole.write_bytes(data)
    # Some are always refused (an empty file), and of text some never (a file packed once).
    assert 0 < refused < len(MUTATIONS) + (whole.suffix == ".parquet")
    prepare(params(root, whole), out)
    assert snapshot(out) == first
