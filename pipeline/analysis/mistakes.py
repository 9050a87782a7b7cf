"""Which pairs go wrong: the worst of them by row, and what is called entailment by gold label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.analysis.columns import Floats, Mask, by_label, called_entailment, label_name, numbers
from pipeline.data.schema import ENTAILMENT
from pipeline.metrics import EntailmentIf


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair, by its row in the table and in the prepared set."""

    row: int
    label: str
    score: float
    premise_tokens: int
    hypothesis_tokens: int
    direction_error: float | None
    """sim(p‖h) − sim(h‖p), so ≥ 0 where an entailment's direction is wrong; None for other pairs, for entailments known to hold
    both ways, and without variances."""


@dataclass(frozen=True, slots=True)
class WorstPairs:
    """The pairs that go most wrong, worst first; the earlier row first among equals."""

    false_positives: tuple[Pair, ...]
    """Called entailment and not; the highest scores."""
    misses: tuple[Pair, ...]
    """Entailments not called so; the lowest scores."""
    wrong_direction: tuple[Pair, ...] | None
    """Entailments whose direction is wrong, by `direction_error`, those aside that have none.
    None without variances."""


@dataclass(frozen=True, slots=True)
class Called:
    """Pairs of one gold label and how many of them are called entailment."""

    label: str
    pairs: int
    called: int
    share: float


def worst_over_seeds(tables: Sequence[pa.Table], thresholds: Sequence[float], entailment_if: EntailmentIf, n: int) -> WorstPairs:
    """The n pairs that go most wrong in each of three ways, by the means over seeds: of scores, thresholds, both similarities.

    Args:
        tables: one set scored by the model of each seed, the same rows in the same order.
        thresholds: each seed's own.

    Raises:
        ValueError: no tables, or tables of different pairs.
    """
    if not tables or len(tables) != len(thresholds):
        raise ValueError(f"{len(tables)} tables and {len(thresholds)} thresholds: one of each for every seed is needed")
    seeds = [{name: numbers(table, name) for name in table.column_names} for table in tables]
    first = seeds[0]
    given = ("label", "reverse_label", "premise_tokens", "hypothesis_tokens")
    if any(seed.keys() != first.keys() or not all(np.array_equal(seed[k], first[k]) for k in given) for seed in seeds):
        raise ValueError("the tables of the seeds hold different pairs")
    means = {
        name: sum((seed[name] for seed in seeds), np.zeros(len(first[name]))) / len(seeds) for name in first.keys() - {*given}
    }
    return _worst({name: first[name] for name in given} | means, sum(thresholds) / len(seeds), entailment_if, n)


def confusion(table: pa.Table, threshold: float, entailment_if: EntailmentIf) -> tuple[Called, ...]:
    """How many pairs of each gold label are called entailment."""
    called = called_entailment(numbers(table, "score"), threshold, entailment_if)
    return tuple(
        Called(name, int(rows.sum()), int(called[rows].sum()), float(called[rows].mean())) for name, rows in by_label(table)
    )


def _worst(columns: dict[str, Floats], threshold: float, entailment_if: EntailmentIf, n: int) -> WorstPairs:
    score, entailed = columns["score"], columns["label"] == ENTAILMENT
    called = called_entailment(score, threshold, entailment_if)
    error = columns["sim_ph"] - columns["sim_hp"] if "sim_ph" in columns else None
    one_way = entailed & (columns["reverse_label"] != ENTAILMENT)

    def pairs(among: Mask, badness: Floats) -> tuple[Pair, ...]:
        rows = np.flatnonzero(among)
        # A stable sort of rising rows leaves the earlier first among equals.
        worst = rows[np.argsort(-badness[rows], kind="stable")][:n].tolist()
        return tuple(
            Pair(
                row=row,
                label=label_name(int(columns["label"][row])),
                score=float(score[row]),
                premise_tokens=int(columns["premise_tokens"][row]),
                hypothesis_tokens=int(columns["hypothesis_tokens"][row]),
                direction_error=float(error[row]) if error is not None and one_way[row] else None,
            )
            for row in worst
        )

    return WorstPairs(
        false_positives=pairs(~entailed & called, score),
        misses=pairs(entailed & ~called, -score),
        wrong_direction=None if error is None else pairs(one_way & (error >= 0), error),
    )
