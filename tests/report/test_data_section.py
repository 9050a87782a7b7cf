"""The report's section on the data: the counts of a profile."""

from __future__ import annotations

from pipeline.families.pairs.report import data as data_section
from tests.report.profiles import PROFILE_OF_SETS


def test_the_data_section_shows_every_count_of_the_profile() -> None:
    tables = {table.id: [[cell.text for cell in row.cells] for row in table.rows] for table in data_section(PROFILE_OF_SETS)}
    assert tables["data-rows"][0] == ["train", "1,011", "11", "empty 1,000"]
    assert tables["data-repeats"][0] == ["dev", "3", "2", "–", "25.0 %"]
    assert tables["data-repeats"][2] == ["a_test", "3", "2", "4", "25.0 %"]
    assert tables["data-labels"][0] == ["train", "5 (45.5 %)", "5 (45.5 %)", "1 (9.1 %)", "62.5", "40.0"]
    assert tables["data-lengths"][0][1:] == ["3 · 3 · 3 · 3 · 9 (longest 9)", "15 · 15 · 15 · 15 · 1,200 (longest 1,200)"]
    assert tables["data-triplets"][0][:5] == ["all", "1,234", "1,000", "1.23", "3"]
    assert tables["data-baselines"] == [[name, "66.0", "45.0", "70.0", "60.0"] for name in ("dev", "a_test")]
    assert ["HTML tag or entity", "dev", "2 of 11", "4, 7"] in tables["data-oddities"]
    for table in data_section(PROFILE_OF_SETS):
        assert {len(row.cells) for row in table.rows} == {len(table.header)}
