"""The wheel holds `pipeline/` as the package `gausscse`, so that a user's own pipeline.py cannot hide it.

An editable installation keeps `pipeline/` and adds the module `gausscse`, which is that package by another name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ALIAS = 'import sys\n\nimport pipeline\n\nsys.modules["gausscse"] = pipeline\n'


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files of the package `gausscse` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files; `version` is "standard" or "editable"."""
        self._written = TemporaryDirectory()
        package = Path(self._written.name) / "gausscse"
        if version == "editable":
            alias = package.with_suffix(".py")
            alias.write_text(_ALIAS, encoding="utf-8")
            build_data["force_include_editable"][str(alias)] = alias.name
            return
        shutil.copytree(Path(self.root) / "pipeline", package, ignore=shutil.ignore_patterns("__pycache__"))
        rooms = "|".join(sorted(path.name.removesuffix(".py") for path in package.iterdir()))
        name = re.compile(rf"\bpipeline(?=\.(?:{rooms})\b)")
        for module in package.rglob("*.py"):
            module.write_text(name.sub("gausscse", module.read_text(encoding="utf-8")), encoding="utf-8")
        build_data["force_include"][str(package)] = "gausscse"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove them."""
        self._written.cleanup()
