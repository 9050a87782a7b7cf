"""The rule by which a model becomes champion: better on the development pairs beyond doubt, and in nothing else clearly worse.

Both models are scored on the same pairs by the same code; what is compared are their per-pair scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from pipeline import bootstrap, metrics
from pipeline.bootstrap import Difference, Statistic
from pipeline.data.schema import ENTAILMENT
from pipeline.params import EvaluateParams, RegisterParams

DEV = "dev"
# Of a test set the first of these that it has may not fall.
_HEADLINE = ("pr_auc", "accuracy", "spearman_cosine")
_GRADED = {"cosine": "spearman_cosine", "similarity": "spearman_similarity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model as the rule sees it."""

    digest: str
    megabytes: float
    tables: Mapping[str, pa.Table]
    """Set → per-pair scores of `pipeline.scoring`; "dev" is one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of the rule, and how it came out."""

    name: str
    passed: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a model takes the champion's place, why, and all that was looked at."""

    promoted: bool
    reason: str
    checks: tuple[Check, ...]
    differences: Mapping[str, Mapping[str, Difference]]
    """Set → metric → champion's and candidate's value, with the interval."""


def differences(
    old: Judged, new: Judged, groups: Mapping[str, NDArray[Any]], evaluate: EvaluateParams, register: RegisterParams
) -> dict[str, dict[str, Difference]]:
    """Every metric of every set that both have.

    Args:
        groups: set → (n,) which of its pairs are drawn together.

    Raises:
        ValueError: the two were not scored on the same pairs.
    """
    found: dict[str, dict[str, Difference]] = {}
    for name in groups:
        for column in ("label", "reverse_label"):
            ours, theirs = (t.tables[name].column(column) if column in t.tables[name].column_names else None for t in (old, new))
            if ours != theirs:
                raise ValueError(f"the two models were not scored on the same pairs of {name}")
        first, second = (_statistics(one, name, evaluate) for one in (old, new))
        found[name] = bootstrap.paired_bootstrap(
            {metric: (first[metric], second[metric]) for metric in first if metric in second},
            groups[name],
            resamples=register.resamples,
            confidence=register.confidence,
        )
    return found


def _statistics(model: Judged, name: str, evaluate: EvaluateParams) -> dict[str, Statistic]:
    table = model.tables[name]
    columns = {column: table.column(column).to_numpy() for column in table.column_names}
    if "label" not in columns:
        return {metric: bootstrap.spearman(columns[c], columns["score"]) for c, metric in _GRADED.items() if c in columns}
    on = model.tables[evaluate.threshold_on.get(name, DEV)]
    threshold, _ = metrics.best_threshold(
        on.column("label").to_numpy() == ENTAILMENT,
        on.column("score").to_numpy(),
        evaluate.threshold_step,
        evaluate.entailment_if,
    )
    labels, scores = columns["label"] == ENTAILMENT, columns["score"]
    called = scores >= threshold if evaluate.entailment_if == ">=" else scores > threshold
    out = {"accuracy": bootstrap.share(called == labels)}
    if labels.any() and not labels.all():
        out["pr_auc"] = bootstrap.pr_auc(labels, scores)
    if "sim_hp" in columns:
        out["direction.sim"] = bootstrap.share(columns["sim_hp"] > columns["sim_ph"], labels)
    return out


def decide(
    old: Judged, new: Judged, groups: Mapping[str, NDArray[Any]], evaluate: EvaluateParams, register: RegisterParams
) -> Decision:
    """Hold a candidate (`new`) against the champion (`old`).

    Raises:
        ValueError: the two were not scored on the same pairs.
    """
    found = differences(old, new, groups, evaluate, register)
    checks = [_gain(found[DEV]["pr_auc"], register)]
    # A champion without variances says nothing of direction: there is nothing to fall from.
    if "sim_hp" in old.tables[DEV].column_names:
        checks.append(_kept(DEV, "direction.sim", found[DEV], register.max_direction_drop))
    for name in found:
        if name != DEV and (metric := next((metric for metric in _HEADLINE if metric in found[name]), None)):
            checks.append(_kept(name, metric, found[name], register.max_test_drop))
    if register.max_megabytes is not None:
        checks.append(
            Check(
                name="size",
                passed=new.megabytes <= register.max_megabytes,
                said=f"{new.megabytes:.1f} MB of weights, register.max_megabytes allows {register.max_megabytes:g}",
            )
        )
    failed = [check.said for check in checks if not check.passed]
    reason = "; ".join(failed) if failed else checks[0].said
    return Decision(promoted=not failed, reason=reason, checks=tuple(checks), differences=found)


def _gain(got: Difference, register: RegisterParams) -> Check:
    interval = f"{100 * register.confidence:g} % interval {got.low:+.2f} to {got.high:+.2f}"
    passed = got.low > register.min_gain
    relation = "is above" if passed else "is not surely above"
    said = (
        f"development PR-AUC {got.new:.2f} against {got.old:.2f}: a gain of {got.gain:+.2f} ({interval}) {relation} "
        f"register.min_gain {register.min_gain:g}"
    )
    return Check(name=f"{DEV}.pr_auc", passed=passed, said=said)


def _kept(name: str, metric: str, found: Mapping[str, Difference], limit: float) -> Check:
    if metric not in found:
        return Check(name=f"{name}.{metric}", passed=False, said=f"{metric} on {name}: the champion has it, this model has not")
    got = found[metric]
    passed = got.gain >= -limit
    said = f"{metric} on {name} {got.new:.2f} against {got.old:.2f}: {got.gain:+.2f}, and {limit:g} is what it may fall"
    return Check(name=f"{name}.{metric}", passed=passed, said=said)
