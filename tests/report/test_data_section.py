"""The report's section on the data: what a person reads of a profile."""

from __future__ import annotations

import copy
from typing import Any

from pipeline.report.blocks import Block, Table, Text, Warnings
from pipeline.report.data import data_section
from tests.report.profiles import PROFILE_OF_SETS as PROFILE


def rows_of(blocks: list[Block], heading: str) -> list[list[str]]:
    """Cells of the table that has a column of that name."""
    (table,) = (block for block in blocks if isinstance(block, Table) and heading in [column.name for column in block.columns])
    return [[cell.text for cell in row.cells] for row in table.rows]


def test_the_data_section_shows_every_count_where_a_person_looks_for_it() -> None:
    page = data_section(PROFILE)
    assert rows_of(page, "rows in")[0] == ["train", "1,011", "11", "empty 1,000"]
    assert rows_of(page, "sentences also in training") == [
        ["dev", "3", "2", "–", "5 of 20 (25.0 %)"],
        ["promotion", "3", "2", "–", "5 of 20 (25.0 %)"],
        ["a_test", "3", "2", "4", "5 of 20 (25.0 %)"],
        ["graded (graded)", "3", "2", "–", "5 of 20 (25.0 %)"],
    ]
    assert rows_of(page, "length-only direction")[0] == ["train", "5 (45.5 %)", "5 (45.5 %)", "1 (9.1 %)", "62.5", "40.0"]
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
    for block in data_section(PROFILE):
        if isinstance(block, Table):
            assert {len(row.cells) for row in block.rows} == {len(block.columns)}


def test_warnings_stand_first() -> None:
    first = data_section(PROFILE)[0]
    assert isinstance(first, Warnings)
    assert first.lines[0].startswith("train: 1 of 11 rows (9.1 %) are contradiction")


def test_a_single_training_class_and_clean_text_are_said_in_words() -> None:
    bare: dict[str, Any] = copy.deepcopy(PROFILE) | {"hypothesis_only": {}}
    for part in (bare["train"], bare["dev"], bare["promotion"], bare["tests"]["a_test"]):
        part["oddities"] = {}
    said = [block.text for block in data_section(bare) if isinstance(block, Text)]
    assert "Hypothesis-only baseline: none, because training has one class only." in said
    assert "No oddity of language or encoding was found." in said
