"""The report: a Markdown page made of what the stages before it wrote."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.data_report import data_section
from pipeline.markdown import table
from pipeline.progress import duration

Numbers = Mapping[str, Mapping[str, float]]


def render(
    *,
    profile: Mapping[str, Any],
    trials_csv: str,
    choice: Mapping[str, Any],
    outcomes: Sequence[Mapping[str, Any]],
    timing: Mapping[str, Mapping[str, float]],
    metrics: Mapping[str, Any],
    registered: Mapping[str, Any],
) -> str:
    """The whole page. Arguments are the parsed files of the stages, see `stages.report`."""
    return "\n".join(
        [
            "# Report",
            "",
            f"Registered as `{registered['name']}` version {registered['version']} (**{registered['alias']}**): "
            f"{registered['reason']}",
            "",
            "## Data",
            "",
            *data_section(profile),
            "## Grid",
            "",
            f"Chosen: learning rate {choice['learning_rate']:g}, batch size {choice['batch_size']}, by the mean over seeds of "
            "the best development PR-AUC.",
            "",
            *_grid(trials_csv),
            "## Final models",
            "",
            *_models(outcomes, timing),
            "## Entailment against the rest",
            "",
            "Percent, mean ± standard deviation over seeds. Hypothesis-only is a bag-of-words classifier that never sees the "
            "premise; majority calls every pair by the more frequent class.",
            "",
            *_nli(metrics["sets"], metrics["hypothesis_only"]),
            "## Direction of entailment",
            "",
            "Percent of entailment pairs whose premise is rightly said to entail the hypothesis, by similarity (sim) and by the "
            "sum of log-variances (var). Length-only says that the sentence with more tokens entails, ties half. Two-way pairs "
            "hold in both directions: near 50 is right.",
            "",
            *_direction(metrics["sets"]),
            *_sts(metrics["sets"]),
        ]
    )


def plus_minus(numbers: Mapping[str, float] | None) -> str:
    """`mean ± sd`, or the value alone for one seed, or a dash."""
    if numbers is None:
        return "–"
    return f"{numbers['mean']:.1f} ± {numbers['sd']:.1f}" if "sd" in numbers else f"{numbers['mean']:.1f}"


def _grid(trials_csv: str) -> list[str]:
    rows = [
        [
            row["learning_rate"],
            row["batch_size"],
            row["seed"],
            f"{float(row['best_dev_pr_auc']):.2f}" if row["best_dev_pr_auc"] else f"failed: {row['failure']}",
            f"{row['best_step']}/{row['total_steps']}",
        ]
        for row in csv.DictReader(io.StringIO(trials_csv))
    ]
    return table(["learning rate", "batch", "seed", "best development PR-AUC", "at step"], rows)


def _models(outcomes: Sequence[Mapping[str, Any]], timing: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows: list[list[str]] = []
    for entry in outcomes:
        outcome, seed = entry["outcome"], entry["trial"]["seed"]
        took = timing[f"seed-{seed}"]
        rows.append(
            [
                str(seed),
                f"{outcome['best_dev_pr_auc']:.2f}",
                f"{outcome['best_step']}/{outcome['total_steps']}",
                f"{outcome['triplets']:,}",
                f"{outcome['same_premise_pairs']:,} ({entry['trial']['train']['same_premise']})",
                f"{duration(took['seconds'])} on {took['workers']} workers",
            ]
        )
    return table(
        ["seed", "best development PR-AUC", "at step", "triplets", "pairs of one premise in a batch", "training with scoring"],
        rows,
    )


def _nli(sets: Mapping[str, Numbers], hypothesis_only: Numbers) -> list[str]:
    rows: list[list[str]] = []
    for name, numbers in sets.items():
        if "accuracy" not in numbers:
            continue
        baseline = hypothesis_only.get(name, {})
        rows.append(
            [
                name,
                f"{numbers['pairs']['mean']:,.0f}",
                plus_minus(numbers.get("pr_auc")),
                plus_minus(numbers.get("average_precision")),
                plus_minus(numbers["accuracy"]),
                f"{baseline.get('pr_auc', float('nan')):.1f}",
                f"{baseline.get('accuracy', float('nan')):.1f}",
                f"{numbers['majority_accuracy']['mean']:.1f}",
            ]
        )
    header = ["set", "pairs", "PR-AUC", "average precision", "accuracy"]
    return table([*header, "hypothesis-only PR-AUC", "hypothesis-only accuracy", "majority"], rows)


def _direction(sets: Mapping[str, Numbers]) -> list[str]:
    kinds = {
        "": "all",
        "not_longer_": "premise not longer",
        "one_way_": "one-way",
        "one_way_not_longer_": "one-way, premise not longer",
        "two_way_": "two-way",
    }
    rows: list[list[str]] = []
    for name, numbers in sets.items():
        for prefix, shown in kinds.items():
            if f"direction.{prefix}pairs" not in numbers:
                continue
            row = [name, shown, f"{numbers[f'direction.{prefix}pairs']['mean']:,.0f}"]
            row += [plus_minus(numbers.get(f"direction.{prefix}{by}")) for by in ("sim", "var")]
            rows.append([*row, f"{numbers[f'direction.{prefix}length_only']['mean']:.1f}"])
    return table(["set", "entailment pairs", "number", "by sim", "by var", "length-only"], rows)


def _sts(sets: Mapping[str, Numbers]) -> list[str]:
    rows = [
        [name, plus_minus(numbers["spearman_cosine"]), plus_minus(numbers.get("spearman_similarity"))]
        for name, numbers in sets.items()
        if "spearman_cosine" in numbers
    ]
    if not rows:
        return []
    return [
        "## Graded similarity (STS)",
        "",
        "Spearman's correlation × 100.",
        "",
        *table(["set", "cosine of means", "symmetrised similarity"], rows),
    ]
