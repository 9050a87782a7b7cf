"""A profile of prepared data, small enough to check by eye; no text goes into one."""

from __future__ import annotations

from typing import Any

from pipeline.data.measure import spread

LENGTHS = {"words": spread([(3, 10), (9, 1)]), "characters": spread([(15, 10), (1200, 1)])}
NLI: dict[str, Any] = {
    "counts": {
        "rows_in": 1011,
        "rows_out": 11,
        "dropped": {"empty": 1000, "duplicate": 0},
        "sentences": 20,
        "sentences_in_train": 5,
        "kept_duplicate": 3,
        "kept_contradictory": 2,
    },
    "labels": {"contradiction": 1, "entailment": 5, "neutral": 5},
    "direction": {"pairs": 5, "length_only": 62.5, "premise_not_longer": 40.0},
    "lengths": {"hypothesis": LENGTHS, "premise": LENGTHS},
    "scripts": {"Latin": 22},
    "dominant_script": "Latin",
    "oddities": {"html": {"rows": 2, "premise": 2, "hypothesis": 0, "first_rows": [4, 7]}},
}
TRIPLETS = {
    "triplets": 1234,
    "premises": 1000,
    "entailments_per_premise": spread([(1, 800), (2, 166), (3, 34)]),
    "expected_false_negatives": [{"batch": 2**k, "pairs": 1.0, "per_row": 2**k / 1e4} for k in range(4, 13)],
}
STS = {key: NLI[key] for key in ("counts", "lengths", "scripts", "dominant_script")} | {"oddities": {}}
PROFILE_OF_SETS: dict[str, Any] = {
    "train": NLI,
    "dev": NLI,
    "promotion": NLI,
    "tests": {"a_test": {**NLI, "counts": {**NLI["counts"], "pairs_in_dev": 4}}},
    "sts": {"graded": STS},
    "text": {},
    "operations": {},
    "tasks": {},
    "triplets": {"all": TRIPLETS, "with_contradiction": {"triplets": 0}},
    "hypothesis_only": {
        name: {"pairs": 11, "accuracy": 70.0, "majority_accuracy": 60.0, "entailments": 45.0, "pr_auc": 66.0}
        for name in ("a_test", "dev")
    },
}
