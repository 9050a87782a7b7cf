"""Claims of the pages that git, the files and pyproject.toml can check."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

# `gausscse reference` writes it; it is not committed.
BUILT = "parameters.md"
PAGES = [*sorted(ROOT.glob("*.md")), *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != BUILT)]
# A word of hexadecimal digits that is not part of a path, a decimal number or the name of a job.
_HEX = re.compile(r"(?<![\w./:-])[0-9a-f]{7,40}(?![\w/]|\.\d)")
# Commits of other repositories.
_OTHERS = re.compile("revision")
# A path of this project. A path with an upper-case part (tests/ROOM) is a placeholder.
_PATH = re.compile(r"(?<![\w/.~-])(?:pipeline|stages|tests|bench|docs|deploy|schemas|presets)/[\w./-]*\w")
# A module of the library, named relative to pipeline/.
_MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?=[`:])")
_TEST = re.compile(r"\b(test_\w+\.py)(?:::(test_\w+))?")
# A file that the commands of a page make.
_MADE = re.compile(r"cat > (\S+) <<")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


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
    assert {"docs/performance.md", "docs/results.md", "docs/diary.md", "docs/usage.md"} <= pages
    history = git("rev-list", "HEAD").stdout.split()
    missing = [(place, commit) for place, commit in named if not any(one.startswith(commit) for one in history)]
    assert not missing, f"not in the history of HEAD; name a commit that is, or none: {missing}"


def paths_of(text: str) -> set[str]:
    """Paths of this project that a page names, placeholders left out."""
    return {path for path in _PATH.findall(text) if not any(part.partition(".")[0].isupper() for part in path.split("/"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = {path for path in paths_of(text) if not (ROOT / path).exists()} - {f"docs/{BUILT}"}
    missing -= set(_MADE.findall(text))
    missing |= {path for path in _MODULE.findall(text) if not any((ROOT / top / path).exists() for top in ("", "pipeline"))}
    missing |= {link for link in _LINK.findall(text) if not (page.parent / link).exists()}
    for file, function in _TEST.findall(text):
        sources = [found.read_text(encoding="utf-8") for found in (ROOT / "tests").rglob(file)]
        if not any(f"def {function}(" in source if function else True for source in sources):
            missing.add(f"{file}::{function}")
    assert not missing


def test_the_map_lists_the_rooms_in_the_order_of_imports() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = [layer.removeprefix("pipeline.") for layer in tools["importlinter"]["contracts"][0]["layers"]]
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = [layer for layer in layers[::-1] if "families" not in layer]
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == rooms


def test_the_site_has_every_page() -> None:
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(re.findall(r": (\S+\.md)$", nav, re.MULTILINE)) == sorted([*pages, BUILT])


def test_every_tutorial_is_tested_and_on_the_first_page() -> None:
    tests = [ROOT / "tests/stages/test_tutorials.py", ROOT / "tests/cluster/test_tutorial.py"]
    run = [name for test in tests for name in re.findall(r'"([a-z-]+)"', _names_of(test.read_text(encoding="utf-8")))]
    names = sorted(page.stem for page in (ROOT / "docs/tutorials").iterdir())
    assert sorted(run) == names
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(tutorials/([a-z-]+)\.md\)", index)) == names


def _names_of(source: str) -> str:
    """The value of TUTORIAL or TUTORIALS."""
    named = re.search(r"^TUTORIALS? = (.*)$", source, re.MULTILINE)
    assert named is not None
    return named[1]


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
