"""The ledger against plain loops: what repeats, contradicts or leaks, and which contradiction goes with which entailment."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data import cleaning
from pipeline.data.dedup import Ledger
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, NEUTRAL, NO_LABEL
from pipeline.data.scratch import database

E, N, C = ENTAILMENT, NEUTRAL, CONTRADICTION
Row = tuple[str, str, int]


def batch(rows: Sequence[Row], reverse_labels: Sequence[int] = ()) -> pa.RecordBatch:
    premise, hypothesis, label = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(premise, pa.string()), pa.array(hypothesis, pa.string()), pa.array(label, pa.int8())]
    back = pa.array(reverse_labels or [NO_LABEL] * len(rows), pa.int8())
    return pa.record_batch([*columns, back], names=["premise", "hypothesis", "label", "reverse_label"])


class Filled:
    """A ledger with these training rows and one held-out set."""

    def __init__(
        self, folder: Path, train: list[Row], held: Sequence[Row] = (), step: int = 1000, sts: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.folder = folder
        with database(folder / "scratch") as connection:
            self.ledger = Ledger(connection)
            self.ledger.add_held_out("dev", batch(held))
            self.ledger.add_held_out("promotion", batch([]))
            self.ledger.add_held_out("sts", graded(sts), graded=True)
            for start in range(0, len(train), step):
                self.ledger.add_train(batch(train[start : start + step]))
            self.reasons = self.ledger.decide().tolist()
            self.back, self.held_back = self.ledger.entailed_back().tolist(), self.ledger.entailed_back("dev").tolist()
            self.overlap, self.repeats = self.ledger.overlap("dev"), self.ledger.repeats("dev")
            # The training rows as a test set.
            self.ledger.add_held_out("test", batch(train))
            self.in_development = self.ledger.in_development("test")
            self.ledger.add_held_out("promotion", batch(train))
            self.of_promotion = self.ledger.in_development("promotion")

    @staticmethod
    def matched(folder: Path, train: list[Row], label: int) -> list[str | None]:
        """The contradiction (or neutral pair) of every kept entailment row, in order."""
        text = pa.table({"row": pa.array(range(len(train)), pa.int64()), "hypothesis": [row[1] for row in train]})
        folder.mkdir(exist_ok=True)
        pq.write_table(text, folder / "it's text.parquet")
        with database(folder / "scratch") as connection:
            ledger = Ledger(connection)
            ledger.add_train(batch(train))
            ledger.decide()
            ledger.match()
            found = [b["partner"].to_pylist() for b in ledger.partners(label, folder / "it's text.parquet")]
        return [text for part in found for text in part]


def graded(pairs: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.record_batch([pa.array(first, pa.string()), pa.array(second, pa.string())], names=["sentence1", "sentence2"])


def random_rows(n: int, seed: int, texts: int) -> list[Row]:
    r = random.Random(seed)
    # Some of the same sentences, spaced in another way.
    words = [f"A  B{i}" if r.random() < 0.2 else f"A B{i}" for i in range(2 * texts)]
    return [(r.choice(words[:texts]) + r.choice(["", "\u2003x", " x"]), r.choice(words), r.randrange(3)) for _ in range(n)]


def same(text: str) -> str:
    return " ".join(text.split())


def plain_labels(rows: list[Row]) -> tuple[defaultdict[tuple[str, str], set[int]], set[tuple[str, str]]]:
    """The labels of each pair, and the pairs whose labels, or those of the pair turned round, cannot all be right."""
    labels: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for p, h, label in rows:
        labels[same(p), same(h)].add(label)
    wrong = {pair for pair, own in labels.items() if len(own) > 1 or (pair[0] == pair[1] and own != {E})}
    # A contradiction holds in both orders.
    for p, h in [*labels]:
        own, turned = labels[p, h], labels.get((h, p), set())
        wrong |= {(p, h)} if (C in own and turned - {C}) or (own - {C} and C in turned) else set()
    return labels, wrong


def plain_reasons(train: list[Row], held: list[Row], sts: list[tuple[str, str]]) -> list[int]:
    rows = [(same(p), same(h), label) for p, h, label in train]
    _, wrong = plain_labels(train)
    # Either sentence of a graded pair may be the premise.
    premises = {same(p) for p, _, _ in held} | {same(text) for pair in sts for text in pair}
    pairs = {(same(a), same(b)) for a, b, *_ in (*held, *sts)}
    pairs |= {(h, p) for p, h in pairs}
    seen: set[Row] = set()
    result: list[int] = []
    for row in rows:
        p, h, _ = row
        if row in seen:
            result.append(cleaning.DUPLICATE)
        elif (p, h) in wrong:
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
    held.append((train[9][1], train[9][0], N))
    sts = [as_it_is[:2], (turned[1], turned[0]), ("Nobody knows it.", premise[0]), ("Nobody says it.", hypothesis[1])]
    got = Filled(tmp_path, train, held, step=700, sts=sts)
    expected = plain_reasons(train, held, sts)
    assert got.reasons == expected
    # Each makes a difference.
    for k in range(3):
        assert plain_reasons(train, held, sts[:k] + sts[k + 1 :]) != expected
    assert plain_reasons(train, held[:-1], sts) != expected
    assert set(expected) == {cleaning.KEPT, *range(cleaning.DUPLICATE, cleaning.LEAKED_PREMISE + 1)}


def test_what_is_known_of_reversed_pairs_against_a_plain_loop(tmp_path: Path) -> None:
    train, held = random_rows(4000, 7, 40), random_rows(500, 8, 12)
    got = Filled(tmp_path, train, held)
    (known, wrong), (of_dev, _) = plain_labels(train), plain_labels(held)
    kept = [reason == cleaning.KEPT for reason in got.reasons]
    facts = {pair for pair, labels in known.items() if labels == {E} and pair not in wrong}
    assert got.back == [keep and (same(h), same(p)) in facts for (p, h, _), keep in zip(train, kept, strict=True)]
    assert got.held_back == [of_dev.get((same(h), same(p))) == {E} for p, h, _ in held]
    assert min(sum(got.back), sum(got.held_back)) > 5


def test_a_reverse_label_says_what_a_row_of_the_pair_turned_round_would(tmp_path: Path) -> None:
    rows = {
        # Known only from a row that is dropped as a duplicate.
        ("a", "b c", E): NO_LABEL,
        ("a", "b  c", E): E,
        # Each denies what the other says.
        ("c", "d", E): N,
        ("d", "c", E): N,
        # A contradiction holds in both orders, and a sentence entails itself.
        ("e", "f", C): E,
        ("g", "g", E): N,
        ("h", "i", E): N,
    }
    with database(tmp_path / "scratch") as connection:
        ledger = Ledger(connection)
        ledger.add_train(batch([*rows], [*rows.values()]))
        wrong = cleaning.CONTRADICTORY
        assert ledger.decide().tolist() == [cleaning.KEPT, cleaning.DUPLICATE, *[wrong] * 4, cleaning.KEPT]
        assert ledger.entailed_back().tolist() == [True, *[False] * 6]
        ledger.add_held_out("dev", batch([*rows], [*rows.values()]))
        ledger.add_held_out("promotion", batch([]))
        assert ledger.repeats("dev")["kept_contradictory"] == 4
        # In a set that is held out, a row's own word about its reverse stays.
        assert ledger.entailed_back("dev").tolist() == [True, True, False, False, True, False, False]


def test_a_text_leaks_in_another_normal_form_and_with_format_characters(tmp_path: Path) -> None:
    train = [("the cafe\u0301", "x", E), ("a tr\u00adain\u200b", "x", E), ("The café", "x", E)]
    got = Filled(tmp_path, train, [("the café", "y", N), ("a train", "y", N)])
    assert got.reasons == [cleaning.LEAKED_PREMISE, cleaning.LEAKED_PREMISE, cleaning.KEPT]


def test_overlap_and_repeats_against_a_plain_loop(tmp_path: Path) -> None:
    train, held = random_rows(300, 3, 20), random_rows(200, 4, 10)
    got = Filled(tmp_path, train, held)
    normal = [(same(p), same(h), label) for p, h, label in held]
    kept = [row for row, reason in zip(train, got.reasons, strict=True) if reason == cleaning.KEPT]
    in_train = {same(text) for row in kept for text in row[:2]}
    sentences = {text for row in normal for text in row[:2]}
    assert got.overlap == {"sentences": len(sentences), "sentences_in_train": len(sentences & in_train)}
    _, wrong = plain_labels(held)
    pairs = {order for row in normal for order in (row[:2], row[1::-1])}
    again = sum((same(p), same(h)) in pairs for p, h, _ in train)
    # The promotion part is compared with dev alone.
    assert got.in_development == got.of_promotion == {"pairs_in_dev": again}
    assert again > 0
    assert got.repeats == {
        "premises": len({p for p, _, _ in normal}),
        "kept_duplicate": len(normal) - len(set(normal)),
        "kept_contradictory": sum((p, h) in wrong for p, h, _ in normal),
    }


@pytest.mark.parametrize("label", [C, N])
def test_partners_against_a_plain_loop(tmp_path: Path, label: int) -> None:
    train = [(p, f"{h} {i}", label) for i, (p, h, label) in enumerate(random_rows(3000, 5, 500))]
    pool: defaultdict[str, list[str]] = defaultdict(list)
    for p, h, own_label in train:
        if own_label == label:
            pool[same(p)].append(h)
    seen: Counter[str] = Counter()
    expected: list[str | None] = []
    for p in [same(p) for p, _, own_label in train if own_label == E]:
        expected.append(pool[p][seen[p] % len(pool[p])] if pool[p] else None)
        seen[p] += 1
    assert {seen[p] > len(pool[p]) for p in pool} == {True, False}
    assert Filled.matched(tmp_path, train, label) == expected


def test_case_counts_and_white_space_of_every_kind_does_not(tmp_path: Path) -> None:
    spaces = [" ", "\t", "\n", "\x0b", "\x0c", "\r", "\x85", "\u00a0", "\u2003", "\u3000", "  "]
    train = [(f"A{space}dog", "runs", E) for space in spaces] + [("a dog", "runs", E)]
    assert Filled(tmp_path, train).reasons == [0] + [cleaning.DUPLICATE] * (len(spaces) - 1) + [0]
