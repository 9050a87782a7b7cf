"""docs/usage.md: its commands are run in one shell, and what they print is held against what the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.console import Shown, differences, free_port, shell, shown, user_environment
from tests.copies import ROOT

PAGE = ROOT / "docs/usage.md"
PORT = "5001"


@pytest.fixture(scope="module")
def project(as_queued: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project after its first `dvc repro` and one experiment, as a user has it."""
    return Path(shutil.copytree(as_queued, tmp_path_factory.mktemp("usage") / "project", symlinks=True))


# No fault, but minutes that nobody has who runs the tests.
@pytest.mark.faults
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_every_command_prints_what_the_page_shows(project: Path, first: str, queued: str) -> None:
    # What takes minutes was run for all tests together.
    queueing = "dvc exp run --queue --name hot --set-param objective.temperature=0.1 && dvc exp run --run-all"
    recorded = {"dvc repro": first, queueing: queued}
    with shell(project, user_environment(project)) as bash:

        def run(one: Shown) -> str:
            printed = recorded.pop(one.command, None)
            return bash.run(one.command) if printed is None else printed

        wrong = differences(PAGE, project, run, {PORT: free_port()})
    assert not wrong, "\n\n".join(wrong)
    assert not recorded, "the page no longer has these"


def test_the_tour_of_the_readme_is_on_the_page() -> None:
    tour = [one.command for one in shown(ROOT / "README.md")]
    assert len(tour) >= 6
    assert set(tour) - {". .venv/bin/activate"} <= {one.command for one in shown(PAGE)}
