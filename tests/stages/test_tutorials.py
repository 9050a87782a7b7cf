"""docs/usage.md and docs/tutorials: their commands are run in one shell, and what they print is held against what the page shows.
So is the notebook of own pairs; test_default_model.py runs the gallery.

tests/cluster/test_tutorial.py runs the one that needs several hosts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.console import Shown, differences, free_port, shell, shown, user_environment
from tests.copies import ROOT, copy_project
from tests.notebooks import changes

curl = pytest.mark.skipif(shutil.which("curl") is None, reason="a page uses curl")
PAGE = ROOT / "docs/usage.md"
TUTORIALS = ("ten-minutes", "own-pairs", "promote-and-serve", "own-objective")
PORT = "8000"


# No faults, but minutes each.
@pytest.mark.faults
@pytest.mark.weekly
@curl
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_goes_as_its_page_says(name: str, tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project", ROOT / "params.yaml")
    with shell(project, user_environment(project)) as bash:

        def run(one: Shown) -> str:
            return bash.run(one.command)

        wrong = differences(ROOT / f"docs/tutorials/{name}.md", project, run, {PORT: str(free_port())})
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.faults
@pytest.mark.weekly
def test_the_notebook_of_own_pairs_prints_what_is_committed(tmp_path: Path) -> None:
    changed = changes("own-pairs.ipynb", copy_project(tmp_path / "project", ROOT / "params.yaml"))
    assert not changed, "\n\n".join(changed)


@pytest.fixture(scope="module")
def project(as_queued: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project after its first `dvc repro` and one experiment, as a user has it."""
    return Path(shutil.copytree(as_queued, tmp_path_factory.mktemp("usage") / "project", symlinks=True))


# No fault, but minutes that nobody has who runs the tests.
@pytest.mark.faults
@pytest.mark.weekly
@curl
def test_every_command_prints_what_the_page_shows(project: Path, first: str, queued: str) -> None:
    # What takes minutes was run for all tests together.
    queueing = "dvc exp run --queue --name hot --set-param objective.temperature=0.1 && dvc exp run --run-all"
    recorded = {"dvc repro": first, queueing: queued}
    with shell(project, user_environment(project)) as bash:

        def run(one: Shown) -> str:
            printed = recorded.pop(one.command, None)
            return bash.run(one.command) if printed is None else printed

        wrong = differences(PAGE, project, run, {"5001": str(free_port())})
    assert not wrong, "\n\n".join(wrong)
    assert not recorded, "the page no longer has these"


def test_the_tour_of_the_readme_is_on_the_page() -> None:
    tour = [one.command for one in shown(ROOT / "README.md")]
    assert len(tour) >= 6
    assert set(tour) - {". .venv/bin/activate"} <= {one.command for one in shown(PAGE)}
