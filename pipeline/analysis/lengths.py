"""What length has to do with the direction of entailment and with the variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline import metrics
from pipeline.analysis.columns import Floats, Mask, entailments, numbers

RATIO_FACTORS = (2**0.5, 2.0, 2**1.5, 4.0)
"""Edges of the length ratio on either side of 1, half an octave apart."""
FEW_SENTENCES = 5
"""Sentences of one length below which their mean and spread are not worth showing."""


@dataclass(frozen=True, slots=True)
class DirectionBin:
    """Entailment pairs whose premise is about so many times as long as the hypothesis.

    Above 1 the bin is lower < ratio ≤ upper, below 1 it is lower ≤ ratio < upper, so that turning a pair round mirrors its bin;
    lower = upper = 1 is the bin of equal lengths.
    """

    lower: float
    upper: float | None
    """None: no bound."""
    pairs: int
    sim: float | None
    """Share right by similarity; None without variances, as is `var`."""
    var: float | None
    length_only: float
    """1 where the premise is longer and 0 where it is shorter; ½ at equal length, where it guesses."""


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Sentences of one length."""

    tokens: int
    sentences: int
    mean: float
    """Of Σ log-variance."""
    sd: float | None
    """n − 1; None for one sentence."""


@dataclass(frozen=True, slots=True)
class LogVarByLength:
    """Whether the sum of log-variances says more than how long a sentence is."""

    sentences: int
    """Distinct (tokens, Σ log-variance) of both sides: a sentence counts once, however many pairs it is in."""
    spearman: float | None
    """Of Σ log-variance with tokens over those; None where either is constant."""
    by_tokens: tuple[LengthBin, ...]
    left_out: int
    """Sentences of lengths that too few have for a bin."""
    unequal_pairs: int
    """Entailment pairs whose sentences differ in length."""
    agreement: float | None
    """Share of those on which var and length-only say the same direction; near 1, var says no more than length."""
    equal_pairs: int
    var_on_equal: float | None
    """Share of the entailment pairs of equal length that var gets right, where length says nothing."""
    difference_spearman: float | None
    """Of the differences, premise less hypothesis, of Σ log-variance and of tokens, over all entailment pairs."""


def direction_by_length_ratio(table: pa.Table, bins: Sequence[float] = RATIO_FACTORS) -> tuple[DirectionBin, ...]:
    """How often the direction of entailment is right, by premise tokens / hypothesis tokens (special tokens included in both).

    Over all entailment pairs, as `direction.sim` and its neighbours of `evaluation.nli_metrics`; two-way ones are among them.

    Args:
        bins: edges above 1, rising; below 1 the edges are their inverses.

    Returns:
        Bins in order of the ratio.
    """
    factors = np.asarray(bins, dtype=np.float64)
    if not len(factors) or factors[0] <= 1 or (np.diff(factors) <= 0).any():
        raise ValueError(f"edges of the length ratio must rise from above 1, not be {list(bins)}")
    entailed = entailments(table)
    premise, hypothesis = entailed["premise_tokens"], entailed["hypothesis_tokens"]
    longer, shorter = np.maximum(premise, hypothesis), np.minimum(premise, hypothesis)
    # By multiplication, on the longer side's scale: no rounding can treat a pair and its reverse differently.
    steps = 1 + (longer[:, None] > factors * shorter[:, None]).sum(1)
    place = np.sign(premise - hypothesis).astype(int) * steps
    edges = (1.0, *factors.tolist(), None)
    out: list[DirectionBin] = []
    for at in np.unique(place).tolist():
        part = {name: column[place == at] for name, column in entailed.items()}
        inner, outer = (edges[abs(at) - 1], edges[abs(at)]) if at else (1.0, 1.0)
        lower, upper = (inner, outer) if at >= 0 else (1 / outer if outer else 0.0, 1 / inner)
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
    """Does the variance just mean length? None where the table has no variances.

    Args:
        few: lengths that fewer sentences have get no bin.
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
