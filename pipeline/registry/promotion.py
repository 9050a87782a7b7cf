"""The promotion rule: a new champion is significantly better on the promotion pairs, and not clearly worse elsewhere.

`register.metric` says which metric decides which model is better; each family names its own (`pipeline.families.family`).

Both models are scored on the same pairs by the same code, and their per-pair scores are compared. Nothing else is chosen on the
promotion pairs (`pipeline.data.split`): the gain of a model on pairs that helped to choose it is too high.

With enough tries, some model wins by luck. So the k-th model tried against a champion gets an error probability of only
α / (k (k + 1)). α is the share below the lower end of the interval of `register.confidence`, (1 − confidence) / 2. Over any
number of tries, these add up to α at most. (This is a union bound. It holds only as long as no model is tuned on figures from
earlier tries.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config.params import EvaluateParams, RegisterParams
from pipeline.data.schema import PROMOTION
from pipeline.data.split import too_few
from pipeline.evaluation import bootstrap
from pipeline.evaluation.bootstrap import Difference
from pipeline.evaluation.set_kind import Tables, kind_of
from pipeline.families.family import all_metrics, families, family_of, promotion_sets
from pipeline.utils.errors import UserError

FINDABLE = 2.0
"""Gain in `register.metric`, in points, that a promotion part should be large enough to find with probability `POWER`."""
POWER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition of the rule and its result."""

    name: str
    passed: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a model becomes champion, why, and everything the rule looked at."""

    promoted: bool
    reason: str
    checks: tuple[Check, ...]
    differences: Mapping[str, Mapping[str, Difference]]
    """Set → metric → the values of champion and candidate, with the interval at this attempt's confidence."""
    warning: str | None
    """One line if the promotion part is too small to find a gain of `FINDABLE` points."""


def differences(
    old: Tables, new: Tables, groups: Mapping[str, NDArray[Any]], evaluate: EvaluateParams, *, resamples: int, confidence: float
) -> dict[str, dict[str, Difference]]:
    """The difference in every metric that both models have, for the sets in `groups`.

    Args:
        groups: set → (n,) the group of each pair; the bootstrap draws whole groups.
        resamples: number of bootstrap draws.
        confidence: confidence of the intervals.

    Raises:
        ValueError: the two models were not scored on the same pairs.
        UserError: a score of one of them is not a finite number.
    """
    per_set: dict[str, dict[str, Difference]] = {}
    for name in groups:
        kind = kind_of(old[name].column_names)
        for column in kind.same:
            ours, theirs = (t[name].column(column) if column in t[name].column_names else None for t in (old, new))
            if ours != theirs:
                raise ValueError(f"the two models were not scored on the same pairs of {name}")
        for model, who in ((old, "champion"), (new, "candidate")):
            _check_finite(model[name], f"set {name}: a score of the {who}")
        first, second = (kind.statistics(name, model, evaluate) for model in (old, new))
        per_set[name] = bootstrap.paired_bootstrap(
            {metric: (first[metric], second[metric]) for metric in first if metric in second},
            groups[name],
            resamples=resamples,
            confidence=confidence,
        )
    return per_set


def _check_finite(scores: pa.Table, what: str) -> None:
    """Refuse a score that is not a number: sorting puts it above all others."""
    for column, values in zip(scores.column_names, scores.columns, strict=True):
        if pa.types.is_floating(values.type) and pc.any(pc.invert(pc.is_finite(values))).as_py():
            raise UserError(
                f"{what} is not a finite number (column {column}), so the two cannot be compared; look at its training"
            )


def set_of(metric: str, of_part: str) -> str:
    """The set on which a metric is measured; `of_part` is `dev` or `promotion`."""
    return getattr(family_of(metric), of_part)


def confidence_of(attempt: int, register: RegisterParams) -> float:
    """Confidence of the interval for the k-th attempt, k from 1: 1 − (1 − `register.confidence`) / (k (k + 1))."""
    return 1 - (1 - register.confidence) / (attempt * (attempt + 1))


def decide(
    old: Tables,
    new: Tables,
    groups: Mapping[str, NDArray[Any]],
    evaluate: EvaluateParams,
    register: RegisterParams,
    *,
    attempt: int,
) -> Decision:
    """Decide whether a candidate (`new`) replaces the champion (`old`).

    Args:
        groups: set → (n,) the group of each pair, for the promotion part and the test sets; the bootstrap draws whole groups.
        attempt: number of models tried against this champion, this one included.

    Raises:
        ValueError: the two models were not scored on the same pairs.
        UserError: `register.metric` is not defined on the promotion part, or the part has fewer than `FEWEST_GROUPS` groups.
    """
    decisive = set_of(register.metric, PROMOTION)
    if few := too_few(decisive, len(np.unique(groups.get(decisive, ()))), family_of(register.metric).groups):
        raise UserError(few)
    confidence = confidence_of(attempt, register)
    per_set = differences(old, new, groups, evaluate, resamples=register.resamples, confidence=confidence)
    gain = per_set[decisive].get(register.metric)
    # A limit of the interval that is not a number would make every comparison false.
    if gain is None or not math.isfinite(gain.low):
        raise UserError(undefined(register.metric, decisive))
    checks = [_gain(gain, register, attempt, confidence)]
    for family in families():
        if family.direction and family.promotion in old:
            statistics = kind_of(old[family.promotion].column_names).statistics(family.promotion, old, evaluate)
            # A champion without variances has no direction score to fall below.
            if family.direction in statistics:
                found = per_set[family.promotion]
                checks.append(_kept(family.promotion, family.direction, found, register.max_direction_drop))
    guarded = [metric for family in families() for metric in family.guarded]
    for name in per_set:
        if name not in promotion_sets() and (metric := next((metric for metric in guarded if metric in per_set[name]), None)):
            checks.append(_kept(name, metric, per_set[name], register.max_test_drop))
    failed = [check.said for check in checks if not check.passed]
    reason = "; ".join(failed) if failed else checks[0].said
    warning = too_small(gain.error, len(groups[decisive]), confidence)
    return Decision(promoted=not failed, reason=reason, checks=tuple(checks), differences=per_set, warning=warning)


def undefined(metric: str, name: str) -> str:
    """What to say if a set lacks the pairs that `register.metric` needs."""
    return (
        f"params.yaml: register.metric: got {metric!r}, which needs {all_metrics()[metric].needs} in the set {name}; it has none"
    )


def too_small(error: float, pairs: int, confidence: float) -> str | None:
    """A warning if a true gain of `FINDABLE` points above `register.min_gain` is found with less than probability `POWER`.

    A gain is found if it is z(confidence) standard errors above the margin. So a true gain of z(confidence) + z(power) standard
    errors above it is found with that power. The standard error falls with the square root of the number of pairs.

    Args:
        error: standard error of the gain on the promotion part, in points.
        pairs: number of pairs in the promotion part.
        confidence: confidence of the deciding interval.

    Returns:
        the warning; None if the part is large enough.
    """
    detectable_gain = (NormalDist().inv_cdf((1 + confidence) / 2) + NormalDist().inv_cdf(POWER)) * error
    if not detectable_gain > FINDABLE:
        return None
    enough = pairs * (detectable_gain / FINDABLE) ** 2
    digits = 10 ** max(0, math.floor(math.log10(enough)) - 1)
    return (
        f"the promotion part ({pairs:,} pairs) is too small to detect a gain of {FINDABLE:g} points: with about "
        f"{math.ceil(enough / digits) * digits:,} pairs, {100 * POWER:g} % of such models would be detected; add development "
        "pairs or raise data.promotion_share"
    )


def _gain(got: Difference, register: RegisterParams, attempt: int, confidence: float) -> Check:
    interval = f"{100 * confidence:.6g} % interval {got.low:+.2f} to {got.high:+.2f}"
    passed = got.low > register.min_gain
    relation = "is above" if passed else "is not significantly above"
    sentence = (
        f"promotion {all_metrics()[register.metric].short} {got.new:.2f} against {got.old:.2f}: a gain of {got.gain:+.2f} "
        f"(attempt {attempt} against this champion: {interval}) {relation} register.min_gain {register.min_gain:g}"
    )
    return Check(name=f"{PROMOTION}.{register.metric}", passed=passed, said=sentence)


def _kept(name: str, metric: str, found: Mapping[str, Difference], limit: float) -> Check:
    difference = found.get(metric)
    if difference is not None and math.isnan(difference.old):
        # For example a graded set with one gold value.
        passed, said = True, f"{metric} on {name} is not defined for the champion, so it cannot fall"
    elif difference is None or math.isnan(difference.new):
        passed, said = False, f"{metric} on {name}: the champion has it, this model does not"
    else:
        passed = difference.gain >= -limit
        said = f"{metric} on {name} {difference.new:.2f} against {difference.old:.2f}: {difference.gain:+.2f}, "
        said += f"it may fall by {limit:g} at most"
    return Check(name=f"{name}.{metric}", passed=passed, said=said)
