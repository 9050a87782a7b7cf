"""How length relates to the direction of entailment and to the variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.evaluation import metrics
from pipeline.families.pairs.analysis.columns import Floats, Mask, entailments, numbers

RATIO_FACTORS = (2**0.5, 2.0, 2**1.5, 4.0)
"""Edges of the length ratio above 1, each √2 times the one before; the edges below 1 are their inverses."""
FEW_SENTENCES = 5
"""With fewer sentences of one length than this, their mean and spread are not shown."""


@dataclass(frozen=True, slots=True)
class DirectionBin:
    """Entailment pairs in one bin of the ratio premise length / hypothesis length.

    A bin above 1 is lower < ratio ≤ upper, a bin below 1 is lower ≤ ratio < upper. So a reversed pair is in the mirrored bin.
    lower = upper = 1 is the bin of equal lengths.
    """

    lower: float
    upper: float | None
    """None: no upper bound."""
    pairs: int
    sim: float | None
    """Share of pairs that similarity gets right; like `var`, None without variances."""
    var: float | None
    length_only: float
    """1 if the premise is longer, 0 if it is shorter, ½ (a guess) at equal length."""


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Sentences of one length."""

    tokens: int
    sentences: int
    mean: float
    """Mean of Σ log-variance."""
    sd: float | None
    """Standard deviation of Σ log-variance (n − 1); None for one sentence."""


@dataclass(frozen=True, slots=True)
class LogVarByLength:
    """Whether the sum of log-variances says more than the length of a sentence."""

    sentences: int
    """Number of distinct (tokens, Σ log-variance) on both sides: a sentence counts once, however many pairs contain it."""
    spearman: float | None
    """Correlation of Σ log-variance and tokens over these sentences; None if either is constant."""
    by_tokens: tuple[LengthBin, ...]
    left_out: int
    """Sentences without a bin, because too few have their length."""
    unequal_pairs: int
    """Entailment pairs whose sentences differ in length."""
    agreement: float | None
    """Share of the unequal pairs for which var and length-only give the same direction; near 1, var says no more than length."""
    equal_pairs: int
    """Entailment pairs whose sentences have equal length, so that length says nothing."""
    var_on_equal: float | None
    """Share of the equal pairs that var gets right."""
    difference_spearman: float | None
    """Correlation of the differences (premise − hypothesis) of Σ log-variance and of tokens, over all entailment pairs."""


def direction_by_length_ratio(table: pa.Table, bins: Sequence[float] = RATIO_FACTORS) -> tuple[DirectionBin, ...]:
    """How often the direction of entailment is right, by premise tokens / hypothesis tokens (special tokens included in both).

    Covers all entailment pairs, including two-way ones, like `direction.sim` in `pipeline.families.pairs.scoring.nli_metrics`.

    Args:
        bins: edges above 1, rising; the edges below 1 are their inverses.

    Returns:
        Bins in order of the ratio.
    """
    factors = np.asarray(bins, dtype=np.float64)
    if not len(factors) or factors[0] <= 1 or (np.diff(factors) <= 0).any():
        raise ValueError(f"edges of the length ratio must rise from above 1, not be {list(bins)}")
    entailed = entailments(table)
    premise, hypothesis = entailed["premise_tokens"], entailed["hypothesis_tokens"]
    longer, shorter = np.maximum(premise, hypothesis), np.minimum(premise, hypothesis)
    # Multiply instead of dividing, always on the longer side: rounding then treats a pair and its reverse alike.
    steps = 1 + (longer[:, None] > factors * shorter[:, None]).sum(1)
    place = np.sign(premise - hypothesis).astype(int) * steps
    edges = (1.0, *factors.tolist(), None)
    out: list[DirectionBin] = []
    for position in np.unique(place).tolist():
        part = {name: column[place == position] for name, column in entailed.items()}
        inner, outer = (edges[abs(position) - 1], edges[abs(position)]) if position else (1.0, 1.0)
        lower, upper = (inner, outer) if position >= 0 else (1 / outer if outer else 0.0, 1 / inner)
        out.append(
            DirectionBin(
                lower=lower,
                upper=upper,
                pairs=len(part["score"]),
                sim=metrics.share_right(part["sim_hp"], part["sim_ph"]) if "sim_hp" in part else None,
                var=metrics.share_right(part["premise_log_var"], part["hypothesis_log_var"]) if "sim_hp" in part else None,
                length_only=metrics.share_right(part["premise_tokens"], part["hypothesis_tokens"], ties=0.5),
            )
        )
    return tuple(out)


def log_var_by_length(table: pa.Table, few: int = FEW_SENTENCES) -> LogVarByLength | None:
    """Does the variance only reflect length? None if the table has no variances.

    Args:
        few: a length with fewer sentences than this gets no bin.
    """
    if "premise_log_var" not in table.column_names:
        return None
    sides = [[numbers(table, f"{side}_{what}") for what in ("tokens", "log_var")] for side in ("premise", "hypothesis")]
    tokens, log_var = np.unique(np.hstack(sides), axis=1)
    lengths, counts = np.unique(tokens, return_counts=True)
    by_tokens = tuple(
        LengthBin(
            tokens=int(length),
            sentences=int(count),
            mean=float(log_var[tokens == length].mean()),
            sd=float(log_var[tokens == length].std(ddof=1)) if count > 1 else None,
        )
        for length, count in zip(lengths, counts, strict=True)
        if count >= few
    )
    entailed = entailments(table)
    longer = entailed["premise_tokens"] - entailed["hypothesis_tokens"]
    wider = entailed["premise_log_var"] - entailed["hypothesis_log_var"]
    equal = longer == 0
    return LogVarByLength(
        sentences=len(tokens),
        spearman=_spearman(log_var, tokens),
        by_tokens=by_tokens,
        left_out=len(tokens) - sum(part.sentences for part in by_tokens),
        unequal_pairs=int((~equal).sum()),
        agreement=_share(np.sign(wider[~equal]) == np.sign(longer[~equal])),
        equal_pairs=int(equal.sum()),
        var_on_equal=_share(wider[equal] > 0),
        difference_spearman=_spearman(wider, longer),
    )


def _share(right: Mask) -> float | None:
    return float(right.mean()) if len(right) else None


def _spearman(a: Floats, b: Floats) -> float | None:
    defined = len(a) > 1 and (a != a[0]).any() and (b != b[0]).any()
    return metrics.spearman(a, b) if defined else None
