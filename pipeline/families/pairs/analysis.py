"""Analysis of the scores of single pairs: curves and shares of one model on one set, and the worst pairs over the seeds.

A table comes from `pipeline.families.pairs.scoring.score_nli`: n pairs of one set, scored by one model. Shares are in percent. A
bin or label without pairs is left out. An undefined share is None, never NaN. A pair without a gold label counts as not entailed.
A tie of sim or var counts as the wrong direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.decision import EntailmentIf, called
from pipeline.data.schema import ENTAILMENT, LABELS, NO_LABEL
from pipeline.evaluation.metrics import share_right, spearman

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Points = list[tuple[Any, ...]]

SERIES = {
    "similarity": ("label", "similarity", "sim_hp", "sim_ph"),
    "direction_by_length": ("log2_length_ratio", "pairs", "sim", "var", "length_only"),
    "variance_by_length": ("tokens", "sentences", "mean_log_var", "sd"),
    "calibration": ("mean_score", "entailed", "pairs"),
}
"""Name of a curve → what its points consist of."""
FEW_SENTENCES = 5
"""Lengths with fewer sentences than this have no point in variance_by_length."""
ENTAILED = LABELS[ENTAILMENT]
MISTAKES = "called entailment", "missed", "wrong direction"
"""The mistakes of `worst_pairs`."""

# Edges of the ratio of the longer to the shorter sentence: half octaves.
_RATIOS = np.array([2**0.5, 2.0, 2**1.5, 4.0])
_DIRECTIONS = (
    ("sim_hp", "sim_ph", 0.0),
    ("premise_log_var", "hypothesis_log_var", 0.0),
    ("premise_tokens", "hypothesis_tokens", 0.5),
)
_SIMILARITY_BINS, _SCORE_BINS = 20, 10


@dataclass(frozen=True, slots=True)
class Analysis:
    """The scores of one model on one set, in brief."""

    points: dict[str, Points]
    """Key of `SERIES` → its points."""
    shares: dict[str, float | None]
    """Heading in the report → a share in percent, or a correlation × 100."""


def analyse(table: pa.Table, threshold: float, entailment_if: EntailmentIf) -> Analysis:
    """Curves and shares of a scored table, with the threshold of its model.

    Raises:
        ValueError: a value is not finite.
    """
    scores, labels = _columns(table), by_label(table)
    positive = called(scores["score"], threshold, entailment_if)
    lengths, of_variance = _variance_by_length(scores)
    calibrated, of_calibration = _calibration(scores)
    shares = {f"{name} called entailment": _percent(positive[rows]) for name, rows in labels.items()}
    precision = _percent(scores["label"][positive] == ENTAILMENT)
    points = _similarity(scores, labels), _direction_by_length(scores), lengths, calibrated
    return Analysis(
        points=dict(zip(SERIES, points, strict=True)), shares={**of_variance, **of_calibration, **shares, "precision": precision}
    )


def _columns(table: pa.Table) -> dict[str, Floats]:
    found = {name: table.column(name).to_numpy().astype(np.float64) for name in table.column_names}
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} values of {name} are not finite")
    return found


def by_label(table: pa.Table) -> dict[str, Mask]:
    """Each gold label that occurs, with its rows; "none" if a pair has no gold label."""
    label = table.column("label").to_numpy()
    every = {name: label == code for code, name in (*enumerate(LABELS), (NO_LABEL, "none"))}
    return {name: rows for name, rows in every.items() if rows.any()}


def _percent(right: Mask) -> float | None:
    return 100 * float(right.mean()) if len(right) else None


def _similarity(scores: dict[str, Floats], labels: dict[str, Mask]) -> Points:
    """Histograms of sim(h‖p) and sim(p‖h) for each label. A value on an edge is in the bin above, 1 in the last bin."""

    def shares(name: str, rows: Mask) -> list[float]:
        inner = np.arange(1, _SIMILARITY_BINS) / _SIMILARITY_BINS
        counts = np.bincount(np.searchsorted(inner, scores[name][rows], side="right"), minlength=_SIMILARITY_BINS)
        return (100 * counts / rows.sum()).tolist()

    return [
        (label, (k + 0.5) / _SIMILARITY_BINS, *both)
        for label, rows in labels.items()
        if "sim_hp" in scores
        for k, both in enumerate(zip(shares("sim_hp", rows), shares("sim_ph", rows), strict=True))
    ]


def _direction_by_length(scores: dict[str, Floats]) -> Points:
    """How often the direction of an entailment pair is right, by premise tokens / hypothesis tokens, in half octaves.

    Two-way pairs count, too, as in `direction.sim`. A bin includes its outer edge, so a pair turned round is in the mirrored bin;
    equal lengths have a bin of their own, and both outermost bins are open.
    """
    entailed = {name: values[scores["label"] == ENTAILMENT] for name, values in scores.items()}
    premise, hypothesis = entailed["premise_tokens"], entailed["hypothesis_tokens"]
    longer, shorter = np.maximum(premise, hypothesis), np.minimum(premise, hypothesis)
    # The longer side is compared with a multiple of the shorter one: rounding then treats a pair and its reverse alike.
    place = np.sign(premise - hypothesis) * (1 + (longer[:, None] > _RATIOS * shorter[:, None]).sum(1))
    points: Points = []
    for step in np.unique(place).tolist():
        part = {name: values[place == step] for name, values in entailed.items()}
        shares = (100 * share_right(part[a], part[b], ties) if a in part else None for a, b, ties in _DIRECTIONS)
        octaves = math.copysign(abs(step) / 2 - 0.25, step) if step else 0.0
        points.append((octaves, len(part["label"]), *shares))
    return points


def _variance_by_length(scores: dict[str, Floats]) -> tuple[Points, dict[str, float | None]]:
    """Σ log-variance by the number of tokens, over distinct sentences; and whether direction by variance is more than length."""
    if "premise_log_var" not in scores:
        return [], {}
    sides = [[scores[f"{side}_{what}"] for what in ("tokens", "log_var")] for side in ("premise", "hypothesis")]
    # A sentence counts once, however many pairs contain it.
    tokens, log_var = np.unique(np.hstack(sides), axis=1)
    by_length = ((length, log_var[tokens == length]) for length in np.unique(tokens).tolist())
    points: Points = [
        (int(length), len(found), float(found.mean()), float(found.std(ddof=1)))
        for length, found in by_length
        if len(found) >= FEW_SENTENCES
    ]
    entailed = scores["label"] == ENTAILMENT
    longer, wider = ((scores[f"premise_{what}"] - scores[f"hypothesis_{what}"])[entailed] for what in ("tokens", "log_var"))
    equal = longer == 0
    return points, {
        "Spearman with tokens": _correlation(log_var, tokens),
        "agrees with length-only": _percent(np.sign(wider[~equal]) == np.sign(longer[~equal])),
        "right at equal length": _percent(wider[equal] > 0),
        "Spearman of the differences": _correlation(wider, longer),
    }


def _correlation(a: Floats, b: Floats) -> float | None:
    defined = len(a) > 1 and (a != a[0]).any() and (b != b[0]).any()
    return 100 * spearman(a, b) if defined else None


def _calibration(scores: dict[str, Floats]) -> tuple[Points, dict[str, float | None]]:
    """The score as a probability of entailment: bins of equal width, and the errors.

    A score outside [0, 1], as cosines have, is replaced by the nearer end. The expected calibration error is the mean over the
    pairs of |mean score − share of entailments| of bins with about the same number of pairs; equal scores share a bin.
    """
    score, entailed = scores["score"], scores["label"] == ENTAILMENT
    p = np.clip(score, 0, 1)

    def bins(place: NDArray[np.integer]) -> list[tuple[float, float, int]]:
        """Mean score, share of entailments, pairs."""
        each = (place == k for k in np.unique(place))
        return [(float(p[here].mean()), float(entailed[here].mean()), int(here.sum())) for here in each]

    by_width = bins(np.searchsorted(np.arange(1, _SCORE_BINS) / _SCORE_BINS, p, side="right"))
    by_rank = bins(np.searchsorted(np.sort(p), p) * _SCORE_BINS // len(p))
    return [(mean, 100 * share, pairs) for mean, share, pairs in by_width], {
        "calibration error": 100 * (sum(pairs * abs(mean - share) for mean, share, pairs in by_rank) / len(p)),
        "Brier score": 100 * float(np.square(p - entailed).mean()),
        "scores beyond [0, 1]": _percent(p != score),
    }


class Pair(NamedTuple):
    """A pair that goes wrong."""

    mistake: str
    row: int
    """Row in the table and in the prepared set."""
    label: str
    score: float
    direction_error: float | None
    """Score of "h entails p" − score of "p entails h", so ≥ 0 if the direction of an entailment is wrong. These are the scores of
    `direction.score`, or without a relation head sim(p‖h) and sim(h‖p). None for other pairs, for entailments known to hold both
    ways, and without variances and relation head."""
    tokens: tuple[int, int]
    """Of premise and hypothesis."""
    set_name: str = ""
    texts: tuple[str, str] = "", ""
    """Premise and hypothesis, where they may be shown."""


def worst_pairs(tables: Sequence[pa.Table], thresholds: Sequence[float], entailment_if: EntailmentIf, n: int) -> list[Pair]:
    """The n worst pairs for each kind of mistake, by means over seeds; worst first, among equals the earlier row first.

    Args:
        tables: the same set scored by the model of each seed.
        thresholds: one for each seed.

    Raises:
        ValueError: the tables have different pairs.
    """
    seeds = [_columns(table) for table in tables]
    given = ("label", "reverse_label", "premise_tokens", "hypothesis_tokens")
    if any(seed.keys() != seeds[0].keys() or not all(np.array_equal(seed[k], seeds[0][k]) for k in given) for seed in seeds):
        raise ValueError("the tables of the seeds hold different pairs")
    # Labels and lengths are the same for each seed.
    means = {name: sum((seed[name] for seed in seeds), np.zeros(len(first))) / len(seeds) for name, first in seeds[0].items()}
    score, entailed = means["score"], means["label"] == ENTAILMENT
    positive = called(score, sum(thresholds) / len(seeds), entailment_if)
    one_way = entailed & (means["reverse_label"] != ENTAILMENT)
    error = np.full(len(score), -np.inf)
    if "similarity_score" in means:
        error = means["reverse_score"] - score
    elif "sim_ph" in means:
        error = means["sim_ph"] - means["sim_hp"]
    kinds = (~entailed & positive, score), (entailed & ~positive, -score), (one_way & (error >= 0), error)
    pairs: list[Pair] = []
    for mistake, (among, badness) in zip(MISTAKES, kinds, strict=True):
        rows = np.flatnonzero(among)
        for row in rows[np.argsort(-badness[rows], kind="stable")][:n].tolist():
            label = next(name for name, of in by_label(tables[0]).items() if of[row])
            wrong = float(error[row]) if one_way[row] and np.isfinite(error[row]) else None
            tokens = int(means["premise_tokens"][row]), int(means["hypothesis_tokens"][row])
            pairs.append(Pair(mistake, row, label, float(score[row]), wrong, tokens))
    return pairs
