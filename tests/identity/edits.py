"""The code as it would be after an edit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.identity import digests
from tests.conftest import ROOT


def edited(copy: Path, monkeypatch: pytest.MonkeyPatch, additions: Mapping[str, str]) -> None:
    """A copy of the code with lines added to modules stands in for the code that runs."""
    shutil.copytree(ROOT / "stages", copy.with_name("stages"), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "pipeline", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in additions.items():
        with (copy / f"{module}.py").open("a", encoding="utf-8") as file:
            file.write(text)
    monkeypatch.setattr(digests, "PACKAGE", copy)
