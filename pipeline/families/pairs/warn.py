"""Warnings about the data that users should read before an hour of training, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.data.measure import MEANINGS, percent
from pipeline.data.split import too_few
from pipeline.families.pairs.params import FAMILY

# Thresholds, in percent unless noted otherwise.
LEAST_LABEL = 10
HYPOTHESIS_ONLY_OVER_CHANCE = 10
LENGTH_ONLY_BETWEEN = (20, 80)
MOST_CONTRADICTORY = 1
MOST_DROPPED = 20
LEAST_WITH_CONTRADICTION = 5
LEAST_DEV_ROWS = 200
MOST_SHARED_SENTENCES = 50
MOST_PAIRS_IN_DEV = 1

# Kind of oddity → the most that passes, in percent. A single very long text is enough for a warning: usually a quote was never
# closed and swallowed many rows.
_MOST_ODD = {
    **dict.fromkeys(("long", "very_long", "other_script", "replacement_character", "mojibake", "control"), 1),
    **dict.fromkeys(("html", "treebank_bracket", "no_letter"), 1),
    "very_long": 0,
    "no_function_word": 10,
}

Profile = Mapping[str, Any]


def warnings(profile: Profile) -> list[str]:
    """Warnings about a profile (`pipeline.families.pairs.profile`), the most serious first; empty if nothing is unusual."""
    checks = (_labels, _sizes, _dropped, _shortcuts, _shared, _text)
    return [line for check in checks for line in check(profile)]


def nli_sets(profile: Profile) -> dict[str, Profile]:
    """Name → profile of the training pairs, both development parts and the NLI test sets; empty without pairs."""
    return {**{name: profile[name] for name in ("train", "dev", "promotion") if name in profile}, **profile["tests"]}


def every_set(profile: Profile) -> dict[str, Profile]:
    """`nli_sets` and the graded sets, whose names get the suffix " (graded)"."""
    return nli_sets(profile) | {f"{name} (graded)": part for name, part in profile["sts"].items()}


def _labels(profile: Profile) -> Iterator[str]:
    for name, part in nli_sets(profile).items():
        rows = sum(part["labels"].values())
        for label, number in part["labels"].items():
            # Test sets may have two labels only; training and development are expected to have all three.
            if percent(number, rows) < LEAST_LABEL and (name in ("train", "dev") or label == "entailment"):
                yield f"{name}: {_share(number, rows, ' rows')} are {label}; is the label column right?"


def _sizes(profile: Profile) -> Iterator[str]:
    if "dev" not in profile:
        return
    rows = profile["dev"]["counts"]["rows_out"]
    if rows < LEAST_DEV_ROWS:
        yield f"dev: {rows:,} rows; too few to choose a model (use at least {LEAST_DEV_ROWS:,}, better thousands)"
    if "promotion" in profile and (few := too_few("promotion", profile["promotion"]["counts"]["premises"], FAMILY.groups)):
        yield few
    every, complete = (profile["train"]["counts"][key] for key in ("triplets", "triplets_with_contradiction"))
    if percent(complete, every) < LEAST_WITH_CONTRADICTION:
        yield (
            f"train: {_share(complete, every, ' entailment pairs')} have a contradiction of the same premise; "
            "train.triplets: with-contradiction leaves the others out"
        )


def _dropped(profile: Profile) -> Iterator[str]:
    for name, part in nli_sets(profile).items():
        counts = part["counts"]
        dropped = {reason: n for reason, n in counts["dropped"].items() if reason != "not_selected"}
        rows = counts["rows_out"] + sum(dropped.values())
        if percent(sum(dropped.values()), rows) > MOST_DROPPED:
            most = max(dropped, key=lambda reason: dropped[reason])
            yield f"{name}: {sum(dropped.values()):,} of {rows:,} rows were dropped, most of them as {most} ({dropped[most]:,})"
        contradictory = dropped.get("contradictory_labels", 0) + counts.get("kept_contradictory", 0)
        if percent(contradictory, rows) > MOST_CONTRADICTORY:
            what = "have a label that contradicts another row, or the pair turned round"
            yield f"{name}: {_share(contradictory, rows, ' rows')} {what}"


def _shortcuts(profile: Profile) -> Iterator[str]:
    given_away = [
        f"{name} {numbers['pr_auc']:.1f} (always-no {numbers['entailments']:.1f})"
        for name, numbers in profile["hypothesis_only"].items()
        if "pr_auc" in numbers and numbers["pr_auc"] - numbers["entailments"] > HYPOTHESIS_ONLY_OVER_CHANCE
    ]
    if given_away:
        yield (
            "the hypothesis alone predicts the label: PR-AUC of a classifier that never sees the premise: "
            f"{', '.join(given_away)}; compare scores with that"
        )
    low, high = LENGTH_ONLY_BETWEEN
    by_length = [
        f"{name} {part['direction']['length_only']:.1f} %"
        for name, part in nli_sets(profile).items()
        if part["direction"]["pairs"] and not low <= part["direction"]["length_only"] <= high
    ]
    if by_length:
        yield (
            f'"the longer sentence entails" predicts the direction of entailment: right on {", ".join(by_length)} of the pairs; '
            "compare direction scores with that, and read them on the pairs whose premise is not longer"
        )


def _shared(profile: Profile) -> Iterator[str]:
    held_out = {name: part["counts"] for name, part in every_set(profile).items() if name != "train"}
    if shared := _over({name: (c["sentences_in_train"], c["sentences"]) for name, c in held_out.items()}, MOST_SHARED_SENTENCES):
        yield f"sentences that are also in training: {shared}; scores there do not show how well unseen text is scored"
    if chosen_on := _over(
        {name: (c["pairs_in_dev"], c["rows_out"]) for name, c in held_out.items() if "pairs_in_dev" in c}, MOST_PAIRS_IN_DEV
    ):
        yield f"pairs that are also in the development set: {chosen_on}; models and thresholds are chosen on those"


def _text(profile: Profile) -> Iterator[str]:
    sets = every_set(profile)
    script = sets["train"]["dominant_script"] if "train" in sets else None
    other = [f"{name} {part['dominant_script']}" for name, part in sets.items() if script not in (None, part["dominant_script"])]
    if other:
        yield f"training is in {script} script, but {', '.join(other)}"
    for kind, most in _MOST_ODD.items():
        odd = {name: (part["oddities"].get(kind, {"rows": 0})["rows"], part["counts"]["rows_out"]) for name, part in sets.items()}
        if odd_sets := _over(odd, most):
            yield f"{MEANINGS[kind]}: {odd_sets} rows; profile.json has row numbers"


def _over(sets: Mapping[str, tuple[int, int]], most: float) -> str:
    """The sets whose part is more than `most` percent of the whole, such as "dev 6 of 50 (12.0 %)"; empty if there are none."""
    return ", ".join(f"{name} {_share(*numbers)}" for name, numbers in sets.items() if percent(*numbers) > most)


def _share(part: int, whole: int, what: str = "") -> str:
    return f"{part:,} of {whole:,}{what} ({percent(part, whole):.1f} %)"
