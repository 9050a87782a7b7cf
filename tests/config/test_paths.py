"""Where a stage keeps what must outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.paths import home


@pytest.mark.parametrize("copy", [".dvc/tmp/exps/tmpx1", ".dvc/tmp/exps/standalone/tmpx1"])
def test_a_queued_copy_is_at_home_in_the_project_it_was_made_from(tmp_path: Path, copy: str) -> None:
    assert home(tmp_path / copy) == tmp_path.resolve()


def test_a_project_is_its_own_home(tmp_path: Path) -> None:
    assert home(tmp_path) == tmp_path
