"""Claims of the pages that git, the files and pyproject.toml can check."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

# `gausscse reference` writes it; it is not committed.
BUILT = "parameters.md"
PAGES = [*sorted(ROOT.glob("*.md")), *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != BUILT)]
# A path of this project. A path with an upper-case part (tests/ROOM) is a placeholder.
_PATH = re.compile(r"(?<![\w/.~-])(?:pipeline|stages|tests|bench|docs|deploy|schemas|presets)/[\w./-]*\w")
# A module of the library, named relative to pipeline/.
_MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?=[`:])")
_TEST = re.compile(r"\b(test_\w+\.py)(?:::(test_\w+))?")
# A file that the commands of a page make.
_MADE = re.compile(r"cat >+ (\S+) <<")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


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


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
