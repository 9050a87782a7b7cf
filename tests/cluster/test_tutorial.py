"""docs/tutorials/first-cluster.md is followed on hosts of its own: it starts the cluster itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, hosts_can_be_made, network
from tests.console import Shown, differences, shell, user_environment
from tests.copies import ROOT, copy_project

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]
TUTORIAL = "first-cluster"
ADDRESS, SHARED = "10.0.0.5", "/mnt/team"


@pytest.fixture
def machines() -> Iterator[Mapping[str, Host]]:
    """The machines of the page, and the reader's laptop; no Ray runs yet."""
    hosts_can_be_made()
    with network(["head", "worker", "laptop"], dict(os.environ)) as made:
        yield made


def test_the_tutorial_goes_as_its_page_says(machines: Mapping[str, Host], tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project", ROOT / "params.yaml")
    # The hosts have one disk, so they have one home, and the token need not be copied.
    home, shared = tmp_path / "home", tmp_path / "team"
    home.mkdir()
    shared.mkdir()
    environment = user_environment(project, HOME=str(home), OMP_NUM_THREADS="1")
    # What the page sets, a user's shell has not set before.
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        environment.pop(name, None)
    # The project is on the laptop only; a job brings its code.
    others = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    with ExitStack() as shells:
        bash = {
            name: shells.enter_context(
                shell(project, environment if name == "laptop" else others, *host.command, f"--wd={project}")
            )
            for name, host in machines.items()
        }

        def run(one: Shown) -> str:
            return bash[one.host or "laptop"].run(one.command)

        replaced = {ADDRESS: machines["head"].address, SHARED: str(shared)}
        wrong = differences(ROOT / f"docs/tutorials/{TUTORIAL}.md", project, run, replaced)
    assert not wrong, "\n\n".join(wrong)
