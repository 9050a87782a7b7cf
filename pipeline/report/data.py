"""The report's section on the data: tables of the profile made by stage prepare (`pipeline.data.profile`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.data.measure import MEANINGS, QUANTILES
from pipeline.data.measure import percent as share_of
from pipeline.data.prepare_text import IN_DOCUMENTS
from pipeline.data.schema import LABELS, OPERATIONS
from pipeline.data.warn import every_set, nli_sets, warnings
from pipeline.report.blocks import Block, Table, Text, Warnings, plain_table
from pipeline.report.numbers import NONE, count, percent

Profile = Mapping[str, Any]

_REASONS = {
    "not_selected": "not selected",
    "no_gold_label": "no gold label",
    "empty": "empty",
    "duplicate": "duplicate",
    "contradictory_labels": "contradictory labels",
    "leaked_pair": "leaked pair",
    "leaked_premise": "leaked premise",
    "single_sentence": "of one sentence",
    "leaked": "leaked",
    "outside_share": "outside the share",
}
_SIDES = ("premise", "hypothesis", "sentence1", "sentence2")
_SHOWN_BATCHES = (32, 128, 512, 4096)


def data_section(profile: Profile) -> list[Block]:
    """The warnings about the data, then a table for each question."""
    warned = tuple(warnings(profile))
    return [
        *([Warnings(warned)] if warned else []),
        *([_rows(profile), _repeats(profile)] if every_set(profile) else []),
        *([_labels(profile)] if nli_sets(profile) else []),
        *([_lengths(profile)] if every_set(profile) else []),
        *([_triplets(profile), _baselines(profile)] if nli_sets(profile) else []),
        *(_oddities(profile) if every_set(profile) else []),
        *([_running_text(profile)] if profile["text"] else []),
        *([_operations(profile)] if profile["operations"] else []),
        *([_tasks(profile)] if profile["tasks"] else []),
    ]


def _rows(profile: Profile) -> Table:
    parts: dict[str, Any] = {"train": profile["train"]["counts"]} if "train" in profile else {}
    files = parts["train"].get("files", {}) if parts else {}
    if len(files) > 1:
        parts |= {f"train: {name}": counts for name, counts in files.items()}
    parts |= {name: part["counts"] for name, part in every_set(profile).items() if name != "train"}
    rows = [[name, count(counts["rows_in"]), count(counts["rows_out"]), _dropped(counts)] for name, counts in parts.items()]
    header = ["set", "rows in", "rows kept", "dropped"]
    return plain_table("data-rows", "Rows", "What was read, and what was dropped for which reason.", header, rows)


def _dropped(counts: Profile) -> str:
    return ", ".join(f"{_REASONS.get(reason, reason)} {count(n)}" for reason, n in counts["dropped"].items() if n) or "none"


def _repeats(profile: Profile) -> Table:
    rows: list[list[str]] = []
    for name, part in every_set(profile).items():
        counts = part["counts"]
        if name == "train":
            continue
        share = share_of(counts["sentences_in_train"], counts["sentences"])
        shared = f"{count(counts['sentences_in_train'])} of {count(counts['sentences'])} ({percent(share)} %)"
        numbers = (counts.get(key) for key in ("kept_duplicate", "kept_contradictory", "pairs_in_dev"))
        repeats = (NONE if number is None else count(number) for number in numbers)
        rows.append([name, *repeats, shared])
    return plain_table(
        "data-repeats",
        "Repeats",
        "Rows of the development and test sets that repeat, or are also in training. They are kept, so that scores compare "
        "with published ones; training rows whose pair or premise is in these sets are dropped as leaked.",
        ["set", "duplicate rows", "rows with contradictory labels", "pairs also in development", "sentences also in training"],
        rows,
    )


def _labels(profile: Profile) -> Table:
    rows: list[list[str]] = []
    for name, part in nli_sets(profile).items():
        total = sum(part["labels"].values())
        shares = [f"{count(part['labels'][label])} ({percent(share_of(part['labels'][label], total))} %)" for label in LABELS]
        direction = part["direction"]
        measured = [percent(direction.get(key)) for key in ("length_only", "premise_not_longer")]
        rows.append([name, *shares, *measured])
    return plain_table(
        "data-labels",
        "Labels",
        'And of the entailment pairs, in percent, those for which "the sentence with more words entails" is right (ties half), '
        "and those whose premise is not longer.",
        ["set", *LABELS, "length-only direction", "premise not longer"],
        rows,
    )


def _lengths(profile: Profile) -> Table:
    rows = [
        [name, side, *(_quantiles(units[unit]) for unit in ("words", "characters"))]
        for name, part in every_set(profile).items()
        for side in _SIDES
        if (units := part["lengths"].get(side))
    ]
    shown = ", ".join(f"{q} %" for q in QUANTILES)
    header = ["set", "sentence", "words", "characters"]
    return plain_table("data-lengths", "Lengths", f"Quantiles ({shown}) and longest.", header, rows)


def _quantiles(numbers: Profile) -> str:
    return " · ".join(count(numbers["quantiles"][str(q)]) for q in QUANTILES) + f" (longest {count(numbers['max'])})"


def _triplets(profile: Profile) -> Table:
    rows: list[list[str]] = []
    for key, name in (("all", "all"), ("with_contradiction", "with a contradiction")):
        part = profile["triplets"][key]
        if not part["triplets"]:
            rows.append([name, "0", *[NONE] * (3 + len(_SHOWN_BATCHES))])
            continue
        groups = part["entailments_per_premise"]
        expected = {row["batch"]: row["per_row"] for row in part["expected_false_negatives"]}
        rows.append(
            [
                name,
                count(part["triplets"]),
                count(part["premises"]),
                f"{groups['mean']:.2f} (most {count(groups['max'])})",
                _histogram(groups["bins"]),
                *(f"{expected[batch]:.3f}" for batch in _SHOWN_BATCHES),
            ]
        )
    header = ["triplets", "number", "premises", "entailments per premise", "premises by entailments"]
    return plain_table(
        "data-triplets",
        "Triplets",
        "Entailments of one premise are false negatives of each other when they meet in a batch (train.same_premise); the last "
        "columns give how many a row of the loss is expected to have in a random batch of that size.",
        [*header, *(f"batch {batch}" for batch in _SHOWN_BATCHES)],
        rows,
    )


def _histogram(bins: Iterable[tuple[int, int, int]]) -> str:
    return ", ".join(f"{first if first == last else f'{first}–{last}'}: {count(n)}" for first, last, n in bins)


def _baselines(profile: Profile) -> Block:
    baselines: Mapping[str, Mapping[str, float]] = profile["hypothesis_only"]
    if not baselines:
        return Text("Hypothesis-only baseline: none, because training has one class only.")
    rows = [
        [name, *(percent(numbers.get(key)) for key in ("pr_auc", "entailments", "accuracy", "majority_accuracy"))]
        for name in nli_sets(profile)
        if (numbers := baselines.get(name))
    ]
    return plain_table(
        "data-baselines",
        "What the hypothesis alone predicts",
        "Percent that a classifier reaches without seeing the premise, compared with chance (PR-AUC: the share of entailments; "
        "accuracy: the more frequent class).",
        ["set", "hypothesis-only PR-AUC", "chance", "hypothesis-only accuracy", "majority"],
        rows,
    )


def _running_text(profile: Profile) -> Table:
    rows = [
        [
            name,
            count(counts["documents_in"]),
            count(counts["documents_out"]),
            _dropped(counts),
            *(count(counts[key]) for key in ("sentences", "repeated_sentences", "boilerplate_sentences")),
            count(counts["sentences_in_train"]) if "sentences_in_train" in counts else NONE,
        ]
        for name, counts in profile["text"].items()
    ]
    header = ["set", "documents in", "documents kept", "dropped", "sentences", "repeated", "boilerplate", "also in training"]
    caption = (
        "Dropped: documents of one sentence, and training documents that repeat another one or are in a development or test set. "
        f"Repeated: sentences that occurred before. Boilerplate: sentences that occur in {IN_DOCUMENTS} documents or more."
    )
    return plain_table("data-text", "Running text", caption, header, rows)


def _operations(profile: Profile) -> Table:
    rows = [
        [
            name,
            count(counts["rows_in"]),
            count(counts["rows_out"]),
            _dropped(counts),
            *(count(counts["operations"][operation]) for operation in OPERATIONS),
            *(count(counts[key]) for key in ("other_than_two_parts", "target_is_input", "components", "largest_component")),
        ]
        for name, counts in profile["operations"].items()
    ]
    header = [
        "set",
        "rows in",
        "rows kept",
        "dropped",
        *OPERATIONS,
        "not in two parts",
        "target is input",
        "components",
        "largest",
    ]
    caption = (
        "Dropped: rows that repeat another one, and training rows connected to a development or test set. Rows that share a "
        "sentence are connected, also through other rows, and stay in one set; such rows are a component. Not in two parts: "
        "split sentences that give no row. Largest: rows of the largest component."
    )
    return plain_table("data-operations", "Operation rows", caption, header, rows)


def _tasks(profile: Profile) -> Table:
    rows = [[name, count(counts["rows"]), ", ".join(counts["classes"])] for name, counts in profile["tasks"].items()]
    return plain_table("data-tasks", "Transfer tasks", "Rows of all parts.", ["task", "rows", "classes"], rows)


def _oddities(profile: Profile) -> list[Block]:
    rows = [
        [
            MEANINGS[kind],
            name,
            f"{count(finding['rows'])} ({percent(share_of(finding['rows'], part['counts']['rows_out']), 2)} %)",
            ", ".join(str(row) for row in finding["first_rows"]),
        ]
        for kind in MEANINGS
        for name, part in every_set(profile).items()
        if (finding := part["oddities"].get(kind))
    ]
    scripts = ", ".join(f"{name} {part['dominant_script']}" for name, part in every_set(profile).items())
    lines: list[Block] = [Text(f"Script of most sentences: {scripts}.")]
    if not rows:
        return [*lines, Text("No oddity of language or encoding was found.")]
    explained = "Worth a look; nothing was dropped for it. Rows are those of the set's file in data/prepared, the first is 1."
    return [*lines, plain_table("data-oddities", "Oddities", explained, ["oddity", "set", "rows", "first ones"], rows)]
