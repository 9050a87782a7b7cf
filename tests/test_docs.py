"""Claims of the pages that git can check."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A word of hexadecimal digits that is not part of a path, a decimal number or the name of a job.
_HEX = re.compile(r"(?<![\w./:-])[0-9a-f]{7,40}(?![\w/]|\.\d)")
# Digests of data and trials in the tables of the two rendered reports, and commits of other repositories.
_OTHERS = re.compile(r"^\||revision")


def commits_of(page: Path) -> list[tuple[str, str]]:
    """(place, commit) of every commit of this project that a page names."""
    return [
        (f"{page.relative_to(ROOT)}:{number}", found)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if not _OTHERS.search(line)
        for found in _HEX.findall(line)
    ]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_commit_that_a_page_names_is_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is not here: no git repository, or a shallow clone")
    named = [entry for page in PAGES for entry in commits_of(page)]
    pages = {place.partition(":")[0] for place, _ in named}
    assert {"docs/performance.md", "docs/results.md", "docs/usage.md"} <= pages
    history = git("rev-list", "HEAD").stdout.split()
    missing = [(place, commit) for place, commit in named if not any(one.startswith(commit) for one in history)]
    assert not missing, f"not in the history of HEAD; name a commit that is, or none: {missing}"
