"""docs/tutorials: each is followed from nothing in a project of its own; what is printed is held against what the page shows.

tests/cluster/test_tutorial.py runs the one that needs several hosts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.console import Shown, differences, free_port, shell, user_environment
from tests.copies import ROOT, copy_project

# No faults, but minutes each.
pytestmark = [
    pytest.mark.faults,
    pytest.mark.weekly,
    pytest.mark.skipif(shutil.which("curl") is None, reason="a tutorial uses curl"),
]
TUTORIALS = ("ten-minutes", "own-pairs", "promote-and-serve", "own-objective")
PORT = "8000"


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_goes_as_its_page_says(name: str, tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project", ROOT / "params.yaml")
    with shell(project, user_environment(project)) as bash:

        def run(one: Shown) -> str:
            return bash.run(one.command)

        wrong = differences(ROOT / f"docs/tutorials/{name}.md", project, run, {PORT: free_port()})
    assert not wrong, "\n\n".join(wrong)
