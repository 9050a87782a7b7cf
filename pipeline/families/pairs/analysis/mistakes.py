"""The pairs that a model gets wrong: the worst ones by row, and the pairs called entailment for each gold label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import ENTAILMENT
from pipeline.families.pairs.analysis.columns import Floats, Mask, by_label, label_name, numbers


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair; `row` is its row in the table and in the prepared set."""

    row: int
    label: str
    score: float
    premise_tokens: int
    hypothesis_tokens: int
    direction_error: float | None
    """Score of "h entails p" − score of "p entails h", so ≥ 0 if the direction of an entailment is wrong. These are the scores of
    `direction.score`, or without a relation head sim(p‖h) and sim(h‖p). None for other pairs, for entailments known to hold both
    ways, and without variances and relation head."""


@dataclass(frozen=True, slots=True)
class WorstPairs:
    """The pairs with the worst errors, worst first; among equals the earlier row first."""

    false_positives: tuple[Pair, ...]
    """Pairs wrongly called entailment; highest scores first."""
    misses: tuple[Pair, ...]
    """Entailments not called entailment; lowest scores first."""
    wrong_direction: tuple[Pair, ...] | None
    """Entailments with the wrong direction; highest `direction_error` first, pairs without that error left out. None without
    variances and relation head."""


@dataclass(frozen=True, slots=True)
class Called:
    """The pairs of one gold label, and the number and share of them that are called entailment."""

    label: str
    pairs: int
    called: int
    share: float


def worst_over_seeds(tables: Sequence[pa.Table], thresholds: Sequence[float], entailment_if: EntailmentIf, n: int) -> WorstPairs:
    """The n worst pairs for each of three kinds of error, by means over seeds of the scores and thresholds.

    Args:
        tables: the same set scored by the model of each seed; the same rows in the same order.
        thresholds: one for each seed.

    Raises:
        ValueError: no tables, not one threshold for each table, or tables of different pairs.
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
    """The pairs called entailment, for each gold label."""
    positive = called(numbers(table, "score"), threshold, entailment_if)
    return tuple(
        Called(name, int(rows.sum()), int(positive[rows].sum()), float(positive[rows].mean())) for name, rows in by_label(table)
    )


def _worst(columns: dict[str, Floats], threshold: float, entailment_if: EntailmentIf, n: int) -> WorstPairs:
    score, entailed = columns["score"], columns["label"] == ENTAILMENT
    positive = called(score, threshold, entailment_if)
    error = None
    if "similarity_score" in columns:
        error = columns["reverse_score"] - score
    elif "sim_ph" in columns:
        error = columns["sim_ph"] - columns["sim_hp"]
    one_way = entailed & (columns["reverse_label"] != ENTAILMENT)

    def pairs(among: Mask, badness: Floats) -> tuple[Pair, ...]:
        rows = np.flatnonzero(among)
        # Stable: among equals the earlier row stays first.
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
        false_positives=pairs(~entailed & positive, score),
        misses=pairs(entailed & ~positive, -score),
        wrong_direction=None if error is None else pairs(one_way & (error >= 0), error),
    )
