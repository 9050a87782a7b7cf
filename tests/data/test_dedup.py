"""The ledger against plain loops: what repeats, contradicts or leaks, and which contradiction goes with which entailment."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import cleaning
from pipeline.data.dedup import Ledger
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, NEUTRAL
from pipeline.data.scratch import database

E, N, C = ENTAILMENT, NEUTRAL, CONTRADICTION
Row = tuple[str, str, int]
How = Literal["cycle", "random"]


def batch(rows: list[Row]) -> pa.RecordBatch:
    premise, hypothesis, label = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(premise, pa.string()), pa.array(hypothesis, pa.string()), pa.array(label, pa.int8())]
    return pa.record_batch(columns, names=["premise", "hypothesis", "label"])


class Filled:
    """A ledger with these training rows and one held-out set."""

    def __init__(
        self,
        folder: Path,
        train: list[Row],
        held: list[Row] | None = None,
        step: int = 1000,
        sts: list[tuple[str, str]] | None = None,
    ) -> None:
        self.folder = folder
        with database(folder / "scratch") as connection:
            self.ledger = Ledger(connection)
            self.ledger.add_held_out("dev", batch(held or []))
            self.ledger.add_held_out("promotion", batch([]))
            self.ledger.add_held_out("sts", graded(sts or []), graded=True)
            for start in range(0, len(train), step):
                self.ledger.add_train(batch(train[start : start + step]))
            self.reasons = self.ledger.decide().tolist()
            self.overlap, self.repeats = self.ledger.overlap("dev"), self.ledger.repeats("dev")
            # The training rows as a test set.
            self.ledger.add_held_out("test", batch(train))
            self.in_development = self.ledger.in_development("test")

    @staticmethod
    def matched(folder: Path, train: list[Row], how: How, seed: int, label: int = CONTRADICTION) -> list[str | None]:
        """The contradiction (or neutral pair) of every kept entailment row, in order."""
        text = pa.table({"row": pa.array(range(len(train)), pa.int64()), "hypothesis": [row[1] for row in train]})
        folder.mkdir(exist_ok=True)
        pq.write_table(text, folder / "it's text.parquet")
        with database(folder / "scratch") as connection:
            ledger = Ledger(connection)
            ledger.add_train(batch(train))
            ledger.decide()
            ledger.match(how, seed)
            found = [b["partner"].to_pylist() for b in ledger.partners(label, folder / "it's text.parquet")]
        return [text for part in found for text in part]


def graded(pairs: list[tuple[str, str]]) -> pa.RecordBatch:
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.record_batch([pa.array(first, pa.string()), pa.array(second, pa.string())], names=["sentence1", "sentence2"])


def random_rows(n: int, seed: int, texts: int) -> list[Row]:
    r = random.Random(seed)
    # Some of the same sentences, spaced in another way.
    words = [f"A  B{i}" if r.random() < 0.2 else f"A B{i}" for i in range(2 * texts)]
    return [(r.choice(words[:texts]) + r.choice(["", "\u2003x", " x"]), r.choice(words), r.randrange(3)) for _ in range(n)]


def plain_reasons(train: list[Row], held: list[Row], sts: list[tuple[str, str]]) -> list[int]:
    def same(text: str) -> str:
        return " ".join(text.split())

    rows = [(same(p), same(h), label) for p, h, label in train]
    labels: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for p, h, label in rows:
        labels[p, h].add(label)
    pairs, premises = {(same(p), same(h)) for p, h, _ in held}, {same(p) for p, _, _ in held}
    # Either sentence of a graded pair may be the premise.
    for first, second in sts:
        pairs |= {(same(first), same(second)), (same(second), same(first))}
        premises |= {same(first), same(second)}
    seen: set[Row] = set()
    result: list[int] = []
    for row in rows:
        p, h, _ = row
        if row in seen:
            result.append(cleaning.DUPLICATE)
        elif len(labels[p, h]) > 1:
            result.append(cleaning.CONTRADICTORY)
        elif (p, h) in pairs:
            result.append(cleaning.LEAKED_PAIR)
        else:
            result.append(cleaning.LEAKED_PREMISE if p in premises else cleaning.KEPT)
        seen.add(row)
    return result


def test_reasons_against_a_plain_loop(tmp_path: Path) -> None:
    train, held = random_rows(4000, 1, 120), random_rows(30, 2, 120)
    # A training pair as it is, one reversed, and two sentences that are a premise and a hypothesis elsewhere.
    as_it_is, turned, premise, hypothesis = train[5], train[6], train[7], train[8]
    sts = [as_it_is[:2], (turned[1], turned[0]), ("Nobody knows it.", premise[0]), ("Nobody says it.", hypothesis[1])]
    got = Filled(tmp_path, train, held, step=700, sts=sts)
    expected = plain_reasons(train, held, sts)
    assert got.reasons == expected
    # Each makes a difference.
    for k in range(3):
        assert plain_reasons(train, held, sts[:k] + sts[k + 1 :]) != expected
    assert set(expected) == {
        cleaning.KEPT,
        cleaning.DUPLICATE,
        cleaning.CONTRADICTORY,
        cleaning.LEAKED_PAIR,
        cleaning.LEAKED_PREMISE,
    }


def test_overlap_and_repeats_against_a_plain_loop(tmp_path: Path) -> None:
    train, held = random_rows(300, 3, 20), random_rows(200, 4, 10)
    got = Filled(tmp_path, train, held)
    same = [(" ".join(p.split()), " ".join(h.split()), label) for p, h, label in held]
    kept = [row for row, reason in zip(train, got.reasons, strict=True) if reason == cleaning.KEPT]
    in_train = {" ".join(text.split()) for row in kept for text in row[:2]}
    sentences = {text for row in same for text in row[:2]}
    assert got.overlap == {"sentences": len(sentences), "sentences_in_train": len(sentences & in_train)}
    labels: defaultdict[Any, set[int]] = defaultdict(set)
    for p, h, label in same:
        labels[p, h].add(label)
    pairs = {row[:2] for row in same}
    again = sum((" ".join(p.split()), " ".join(h.split())) in pairs for p, h, _ in train)
    assert got.in_development == {"pairs_in_dev": again}
    assert again > 0
    assert got.repeats == {
        "kept_duplicate": len(same) - len(set(same)),
        "kept_contradictory": sum(len(labels[p, h]) > 1 for p, h, _ in same),
    }


def test_cycle_by_hand(tmp_path: Path) -> None:
    rows = [("7", E), ("1", C), ("7", C), ("7", E), ("1", E), ("7", E), ("7", C), ("9", E), ("1", C), ("9", N)]
    train = [(premise, f"h{i}", label) for i, (premise, label) in enumerate(rows)]
    # Premise 7: entailments at 0, 3, 5, contradictions at 2, 6 → 2, 6, 2.
    # Premise 1: entailment at 4, contradictions at 1, 8 → 1. Premise 9: entailment at 7, none.
    assert Filled.matched(tmp_path, train, "cycle", 0) == ["h2", "h6", "h1", "h2", None]


@pytest.mark.parametrize("label", [C, N])
def test_cycle_against_a_plain_loop(tmp_path: Path, label: int) -> None:
    train = [(p, f"{h} {i}", label) for i, (p, h, label) in enumerate(random_rows(3000, 5, 500))]
    pool: defaultdict[str, list[str]] = defaultdict(list)
    for p, h, own_label in train:
        if own_label == label:
            pool[" ".join(p.split())].append(h)
    seen: Counter[str] = Counter()
    expected: list[str | None] = []
    for p, _, own_label in train:
        if own_label == E:
            own = pool[" ".join(p.split())]
            expected.append(own[seen[" ".join(p.split())] % len(own)] if own else None)
            seen[" ".join(p.split())] += 1
    assert Filled.matched(tmp_path, train, "cycle", 0, label) == expected


def test_random_draws_are_even_and_go_by_the_seed(tmp_path: Path) -> None:
    entailments, choices = 4000, 4
    train = [("p", f"e{i}", E) for i in range(entailments)] + [("p", f"c{i}", C) for i in range(choices)]
    drawn = Filled.matched(tmp_path / "a", train, "random", 1)
    counts = Counter(drawn)
    assert set(counts) == {f"c{i}" for i in range(choices)}
    # 1000 expected each, standard deviation 27.
    assert all(abs(number - entailments / choices) < 140 for number in counts.values())
    assert Filled.matched(tmp_path / "b", train, "random", 1) == drawn
    assert Filled.matched(tmp_path / "c", train, "random", 2) != drawn


@pytest.mark.parametrize("how", ["cycle", "random"])
def test_no_contradiction_and_no_entailment(tmp_path: Path, how: How) -> None:
    rows = [("p", "x", E), ("q", "y", E), ("p", "z", N)]
    assert Filled.matched(tmp_path / "a", rows, how, 0) == [None, None]
    assert Filled.matched(tmp_path / "c", rows, how, 0, N) == ["z", None]
    assert Filled.matched(tmp_path / "b", [("p", "x", C), ("q", "y", N)], how, 0) == []


def test_case_counts_and_white_space_of_every_kind_does_not(tmp_path: Path) -> None:
    spaces = [" ", "\t", "\n", "\x0b", "\x0c", "\r", "\x85", "\u00a0", "\u2003", "\u3000", "  "]
    train = [(f"A{space}dog", "runs", E) for space in spaces] + [("a dog", "runs", E)]
    assert Filled(tmp_path, train).reasons == [0] + [cleaning.DUPLICATE] * (len(spaces) - 1) + [0]
