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

_ALIAS = '''"""The package `pipeline` of a checkout by the name that a wheel gives it: `gausscse.x` is the module `pipeline.x`."""
import importlib
import sys
from importlib.machinery import ModuleSpec

import pipeline


class Alias:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.startswith("gausscse.") else None

    def create_module(self, spec):
        module = importlib.import_module("pipeline." + spec.name.partition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, Alias())
sys.modules["gausscse"] = pipeline
'''


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
