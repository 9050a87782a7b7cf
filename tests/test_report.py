"""The report's section on the data: what a person reads of a profile."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from pipeline.data.measure import spread
from pipeline.data_report import data_section

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
PROFILE: dict[str, Any] = {
    "train": NLI,
    "dev": NLI,
    "tests": {"a_test": {**NLI, "counts": {**NLI["counts"], "pairs_in_dev": 4}}},
    "sts": {"graded": STS},
    "triplets": {"all": TRIPLETS, "with_contradiction": {"triplets": 0}},
    "hypothesis_only": {
        name: {"pairs": 11, "accuracy": 70.0, "majority_accuracy": 60.0, "entailments": 45.0, "pr_auc": 66.0}
        for name in ("a_test", "dev")
    },
}


def rows_of(page: list[str], header: str) -> list[list[str]]:
    """Cells of the table whose header line has `header`."""
    start = next(i for i, line in enumerate(page) if line.startswith("|") and header in line)
    cells: list[list[str]] = []
    for line in page[start + 2 :]:
        if not line:
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return cells


def test_the_data_section_shows_every_count_where_a_person_looks_for_it() -> None:
    page = data_section(PROFILE)
    assert rows_of(page, "rows in")[0] == ["train", "1,011", "11", "empty 1,000"]
    assert rows_of(page, "sentences also in training") == [
        ["dev", "3", "2", "–", "5 of 20 (25.0 %)"],
        ["a_test", "3", "2", "4", "5 of 20 (25.0 %)"],
        ["graded (graded)", "3", "2", "–", "5 of 20 (25.0 %)"],
    ]
    assert rows_of(page, "length-only")[0] == ["train", "5 (45.5 %)", "5 (45.5 %)", "1 (9.1 %)", "62.5", "40.0"]
    lengths = rows_of(page, "words")
    assert [row[:2] for row in lengths[:2]] == [["train", "premise"], ["train", "hypothesis"]]
    assert lengths[0][2:] == ["3 · 3 · 3 · 3 · 9 (longest 9)", "15 · 15 · 15 · 15 · 1,200 (longest 1,200)"]
    every, complete = rows_of(page, "premises by entailments")
    assert every[1:5] == ["1,234", "1,000", "1.23 (most 3)", "1: 800, 2: 166, 3–4: 34"]
    assert every[5:] == ["0.003", "0.013", "0.051", "0.410"]
    assert complete[1] == "0"
    assert rows_of(page, "hypothesis-only PR-AUC") == [[name, "66.0", "45.0", "70.0", "60.0"] for name in ("dev", "a_test")]
    assert ["HTML tag or entity", "dev", "2 (18.18 %)", "4, 7"] in rows_of(page, "oddity")


def test_every_row_of_a_table_has_the_cells_of_its_header() -> None:
    page = data_section(PROFILE)
    for above, line in itertools.pairwise(page):
        if above.startswith("|") and line.startswith("|"):
            assert above.count("|") == line.count("|")


def test_warnings_stand_first() -> None:
    page = data_section(PROFILE)
    assert page[0].startswith("- **Warning:** train: 1 of 11 rows (9.1 %) are contradiction")


def test_a_single_training_class_and_clean_text_are_said_in_words() -> None:
    bare = copy.deepcopy(PROFILE) | {"hypothesis_only": {}}
    for part in (bare["train"], bare["dev"], bare["tests"]["a_test"]):
        part["oddities"] = {}
    page = "\n".join(data_section(bare))
    assert "Hypothesis-only baseline: none, because training has one class only." in page
    assert "No oddity of language or encoding was found." in page
