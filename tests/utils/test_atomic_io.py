"""Folders that are written whole, whoever else writes them at the same time, and the sums of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.data.table_io import all_or_nothing
from pipeline.utils.atomic_io import check_sums, write_directory, write_sums
from pipeline.utils.errors import UserError


def fill(folder: Path, name: str) -> None:
    (folder / name).write_text(name, encoding="utf-8")
    write_sums(folder)


def test_two_writers_with_one_process_number_do_not_mix(tmp_path: Path) -> None:
    # As two containers have it, each with a process 7.
    out = tmp_path / "scores"
    with write_directory(out) as first:
        fill(first, "a")
        with write_directory(out) as second:
            assert list(second.iterdir()) == []
            fill(second, "b")
        assert (out / "b").is_file()
        check_sums(first)
    check_sums(out)
    assert sorted(path.name for path in out.iterdir()) == ["SHA256SUMS", "a"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_run_into_the_same_data_folder_is_refused(tmp_path: Path) -> None:
    with all_or_nothing(tmp_path, ["rows"]) as first:
        (first / "rows").write_text("first", encoding="utf-8")
        with (
            pytest.raises(UserError, match="another run is writing there; wait until it has ended, and run again"),
            all_or_nothing(tmp_path, ["rows"]),
        ):
            raise AssertionError
    assert (tmp_path / "rows").read_text(encoding="utf-8") == "first"
    with all_or_nothing(tmp_path, ["rows"]) as again:
        (again / "rows").write_text("again", encoding="utf-8")
    assert (tmp_path / "rows").read_text(encoding="utf-8") == "again"
    assert list(tmp_path.iterdir()) == [tmp_path / "rows"]
