"""Matching contradictions to entailment pairs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.data.schema import CONTRADICTION, ENTAILMENT, NEUTRAL
from pipeline.data.triplets import match_contradictions

E, N, C = ENTAILMENT, NEUTRAL, CONTRADICTION
Int8s = npt.NDArray[np.int8]


def rows_of(*rows: tuple[int, int]) -> tuple[npt.NDArray[np.int32], Int8s]:
    premise, label = zip(*rows, strict=True)
    return np.array(premise, np.int32), np.array(label, np.int8)


def test_cycle_by_hand() -> None:
    # Premise 7: entailments at 0, 3, 5, contradictions at 2, 6 → 2, 6, 2.
    # Premise 1: entailment at 4, contradictions at 1, 8 → 1. Premise 9: entailment at 7, none → -1.
    premise, label = rows_of((7, E), (1, C), (7, C), (7, E), (1, E), (7, E), (7, C), (9, E), (1, C), (9, N))
    entailment, contradiction = match_contradictions(premise, label, "cycle", seed=0)
    assert entailment.tolist() == [0, 3, 4, 5, 7]
    assert contradiction.tolist() == [2, 6, 1, 2, -1]


def random_rows(n: int) -> tuple[npt.NDArray[np.int32], Int8s]:
    generator = np.random.default_rng(5)
    return generator.integers(0, n // 6, n, dtype=np.int32), generator.integers(0, 3, n, dtype=np.int8)


def test_cycle_against_a_plain_loop() -> None:
    premise, label = random_rows(3000)
    pool: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(label == C).tolist():
        pool[premise[row]].append(row)
    seen: defaultdict[int, int] = defaultdict(int)
    expected: list[tuple[int, int]] = []
    for row in np.flatnonzero(label == E).tolist():
        own = pool[premise[row]]
        expected.append((row, own[seen[premise[row]] % len(own)] if own else -1))
        seen[premise[row]] += 1
    assert list(zip(*(column.tolist() for column in match_contradictions(premise, label, "cycle", 0)), strict=True)) == expected


def test_random_draws_from_the_premise_own_contradictions_by_seed() -> None:
    premise, label = random_rows(3000)
    entailment, contradiction = match_contradictions(premise, label, "random", seed=1)
    found = contradiction >= 0
    assert (premise[contradiction[found]] == premise[entailment[found]]).all()
    assert (label[contradiction[found]] == C).all()
    np.testing.assert_array_equal(found, np.isin(premise[entailment], premise[label == C]))
    np.testing.assert_array_equal(contradiction, match_contradictions(premise, label, "random", seed=1)[1])
    assert (contradiction != match_contradictions(premise, label, "random", seed=2)[1]).any()


def test_random_draws_are_even() -> None:
    entailments, choices = 4000, 4
    premise, label = rows_of(*[(0, E)] * entailments, *[(0, C)] * choices)
    counts = np.bincount(match_contradictions(premise, label, "random", seed=0)[1] - entailments)
    assert len(counts) == choices
    # 1000 expected each, standard deviation 27.
    assert (abs(counts - entailments / choices) < 140).all()


@pytest.mark.parametrize("how", ["cycle", "random"])
def test_no_contradiction_and_no_entailment(how: str) -> None:
    premise, label = rows_of((0, E), (1, E), (0, N))
    assert match_contradictions(premise, label, how, 0)[1].tolist() == [-1, -1]  # pyright: ignore[reportArgumentType]
    premise, label = rows_of((0, C), (1, N))
    assert [len(rows) for rows in match_contradictions(premise, label, how, 0)] == [0, 0]  # pyright: ignore[reportArgumentType]
