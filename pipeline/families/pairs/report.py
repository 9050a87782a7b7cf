"""The tables of labelled pairs: their results and their data. Those of single pairs are in `pairs.report_scores`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipeline.data.measure import percent as share_of
from pipeline.data.schema import LABELS
from pipeline.families.pairs import report_scores as scores
from pipeline.families.pairs.analysis import SERIES
from pipeline.families.pairs.warn import every_set, nli_sets
from pipeline.report.page import Section, Table, percent
from pipeline.report.results import Results
from pipeline.report.tables import (
    QUOTED,
    Baselines,
    Headline,
    Measure,
    Profile,
    counted,
    dropped,
    measures_of,
    results_table,
    section,
)
from pipeline.utils.atomic_io import to_csv

# Sentence Representations via Gaussian Embedding (arXiv 2305.12990), Tables 1 and 2; SimCSE has no direction.
_OBJECTIVES = ("simcse", "ent", "ent+con", "ent+rev", "ent+con+rev")
_PUBLISHED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("snli_test", "accuracy"): (74.96, 72.50, 78.33, 70.64, 77.51),
    ("snli_test", "pr_auc"): (66.76, 61.44, 72.50, 57.57, 69.33),
    ("sick_test", "accuracy"): (86.11, 76.50, 85.21, 74.24, 84.37),
    ("sick_test", "pr_auc"): (81.41, 64.33, 80.13, 57.31, 78.92),
    ("snli_test", "direction.sim"): (81.65, 61.56, 97.01, 97.09),
    ("snli_test", "direction.var"): (81.19, 60.44, 97.12, 97.21),
    ("sick_test", "direction.sim"): (63.01, 61.62, 71.23, 69.22),
    ("sick_test", "direction.var"): (62.44, 62.18, 71.93, 70.13),
}
_BASELINES = ("always-no", "length-only", "hypothesis-only", "chance")
_ENTAILMENT = (
    "Hypothesis-only is a classifier of the hypothesis's words that never sees the premise; hard pairs are those that it gets "
    "wrong. Always-no calls no pair entailment; its PR-AUC is the share of entailments. The threshold is the score with the "
    "highest accuracy on dev, or on the set that evaluate.threshold_on names. Directed: right are the entailment pairs that "
    "hold one way; wrong are the neutral and contradiction pairs, and every right pair turned round. A symmetric score reaches "
    "about half. Three-way: the likeliest label by the relation head, where a reversed entailment counts as neutral. Length-only "
    "scores a pair by how many tokens longer its premise is. The paper's: arXiv 2305.12990, Tables 1 and 2; BERT-base, all of "
    "SNLI and MultiNLI, mean of five seeds; direction over all entailment pairs; never bold."
)
_DIRECTION = (
    "Percent of the entailment pairs (number in brackets) whose premise is rightly said to entail the hypothesis: by score, the "
    "scores of the pair both ways, if a relation head gives them; by sim, sim(h‖p) > sim(p‖h); by var, the larger sum of "
    "log-variances. Length-only: the sentence with more tokens entails, ties half. Two-way pairs hold in both directions: near "
    "50 is right. Of neutral pairs the premise does not entail the hypothesis: what is above 50 comes from how premises and "
    "hypotheses are written. Neither is bold."
)
_OF_SET = {
    "accuracy": "accuracy",
    "threshold": "threshold",
    "average_precision": "average precision",
    "directed_pr_auc": "directed PR-AUC",
    "directed_average_precision": "directed average precision",
    "hard.directed_pr_auc": "hard pairs: directed PR-AUC",
    "three_way": "three-way accuracy",
}
_SUBSETS = {
    "": "all",
    "not_longer_": "premise not longer",
    "one_way_": "one-way",
    "one_way_not_longer_": "one-way, premise not longer",
    "two_way_": "two-way",
    "hard_": "hard pairs",
    "neutral_": "neutral pairs",
}


def headlines(results: Results) -> list[Headline]:
    """Entailment, and its direction: of one-way pairs where they are known."""
    sets = results.test_sets_with("accuracy")
    direction: list[Measure] = []
    for name, by in itertools.product(sets, ("sim", "score")):
        subset = "one_way_" if results.main.mean(name, "direction.one_way_pairs") else ""
        heading = name + (", one-way" if subset else "") + (", by score" if by == "score" else "")
        direction.append(Measure(name, f"direction.{subset}{by}", heading))
    entailment = [Measure(name, "pr_auc", name) for name in sets]
    best: Baselines = {f"{QUOTED} best": {key: max(values) for key, values in _PUBLISHED.items()}}
    # The baseline that is a recipe, if no recipe of the project has it.
    rivals: Baselines = {} if any(r.objective == "simcse" and r.summary for r in results.recipes) else {"simcse": {}}
    return [
        Headline("PR-AUC of entailment", entailment, {**_baselines(results, entailment), **rivals, **best}),
        Headline("Direction of entailment", direction, {**_baselines(results, direction), **best}),
    ]


champion = scores.champion


def sections(results: Results, folder: Path) -> list[Section]:
    """Tables 1, 2 and 4, and the figures of the scores of single pairs, whose points are written into a folder."""

    def made(id: str, title: str, measures: Sequence[Measure]) -> list[Table]:
        return results_table(results, id, title, "Percent.", measures, {**_baselines(results, measures), **published})

    published = {
        f"{QUOTED} {objective}": {key: values[k] for key, values in _PUBLISHED.items() if -k <= len(values)}
        for k, objective in enumerate(_OBJECTIVES, -len(_OBJECTIVES))
    }
    sets, of_set = results.sets_with("accuracy"), "Table 1. Entailment, more of"
    areas = measures_of(sets, {"pr_auc": "PR-AUC", "hard.pr_auc": "hard pairs"})
    entailment = made("table-1", "Table 1. PR-AUC of entailment against the rest", areas)
    direction: list[Table] = []
    for k, name in enumerate(sets):
        shown = [
            Measure(name, key, heading, key != "threshold", 3 if key == "threshold" else 1) for key, heading in _OF_SET.items()
        ]
        entailment += made(f"table-1-{k}", f"{of_set} {name}", shown)
        measures = [
            Measure(name, f"direction.{subset}{by}", f"{heading} ({pairs:,.0f}): {by}", subset not in ("two_way_", "neutral_"))
            for subset, heading in _SUBSETS.items()
            for by in ("score", "sim", "var")
            if (pairs := results.main.mean(name, f"direction.{subset}pairs")) is not None
        ]
        direction += made(f"table-2-{k}", f"Table 2. Direction of entailment: {name}", measures)
    graded = {"spearman_cosine": "cosine of means", "spearman_similarity": "symmetrised similarity"}
    caption = "Spearman's rank correlation × 100 with the gold scores; the training objectives do not ask for it."
    measures = measures_of(results.sets_with("spearman_cosine"), graded)
    measured = scores.measure(results)
    series = scores.series(measured)
    for name, rows in series.items():
        text = to_csv(rows, ("recipe", "set", "seed", *SERIES[name]))
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return [
        *section("nli", "Entailment against the rest", entailment, _ENTAILMENT),
        *section("direction", "Direction of entailment", direction, _DIRECTION),
        *section("sts", "Graded similarity", results_table(results, "table-4", "Table 4. STS", caption, measures, {})),
        *scores.figure_sections(results, measured, series),
    ]


def _baselines(results: Results, measures: Iterable[Measure]) -> dict[str, dict[tuple[str, str], float | None]]:
    """Metrics of calling no pair entailment, of the number of tokens, of a classifier without the premise, and of chance."""
    rows: dict[str, dict[tuple[str, str], float | None]] = {name: {} for name in _BASELINES}
    for m in measures:
        mean = partial(results.main.mean, m.set_name)
        rows["hypothesis-only"][m.key] = results.hypothesis_only.get(m.set_name, {}).get(m.metric)
        if m.metric.startswith("direction."):
            rows["length-only"][m.key] = mean(re.sub("(score|sim|var)$", "length_only", m.metric))
            rows["chance"][m.key] = 50.0
        else:
            rows["length-only"][m.key] = mean(f"{m.metric}_length_only")
            part = "hard." if m.metric.startswith("hard.") else ""
            entailments, pairs = mean(f"{part}entailments"), mean(f"{part}pairs")
            if m.metric in ("accuracy", "pr_auc", "hard.pr_auc", "average_precision") and entailments is not None and pairs:
                share = 100 * entailments / pairs
                rows["always-no"][m.key] = 100 - share if m.metric == "accuracy" else share
    return {name: row for name, row in rows.items() if row}


def _labels(profile: Profile) -> list[Table]:
    """The labels, and the direction of the entailment pairs."""

    def label(name: str) -> Callable[[Profile], object]:
        return lambda part: (
            f"{part['labels'][name]:,} ({percent(share_of(part['labels'][name], sum(part['labels'].values())))} %)"
        )

    labels = {
        **{name: label(name) for name in LABELS},
        "length-only direction": lambda part: part["direction"].get("length_only"),
        "premise not longer": lambda part: part["direction"].get("premise_not_longer"),
    }
    about = "Of the entailment pairs, in percent: more words in the premise (ties half), and a premise that is not longer."
    return counted("data-labels", "Labels", about, labels, nli_sets(profile))


def data(profile: Profile) -> list[Table]:
    """The tables of the profile that stage prepare made (`pipeline.families.pairs.profile`), of the kinds of rows that it has."""
    sets = every_set(profile)
    counts = {name: part["counts"] for name, part in sets.items()}
    files = counts.get("train", {}).get("files", {})
    read = {**counts, **({f"train: {name}": part for name, part in files.items()} if len(files) > 1 else {})}
    repeats = {
        "duplicate rows": "kept_duplicate",
        "rows with contradictory labels": "kept_contradictory",
        "pairs also in development": "pairs_in_dev",
        "sentences also in training": lambda part: f"{percent(share_of(part['sentences_in_train'], part['sentences']))} %",
    }
    repeated = (
        "Rows of the development and test sets that repeat, or are also in training. They are kept, so that scores compare with "
        "published ones; training rows whose pair or premise is in these sets are dropped as leaked."
    )
    return [
        *counted("data-rows", "Rows", "", {"rows in": "rows_in", "rows kept": "rows_out", "dropped": dropped}, read),
        *counted("data-repeats", "Repeats", repeated, repeats, {name: c for name, c in counts.items() if name != "train"}),
        *_labels(profile),
    ]
