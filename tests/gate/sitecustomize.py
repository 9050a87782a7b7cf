"""Holds this process at a change of a file while a gate is closed (gates.py). Python imports this module before all others if its
folder is on PYTHONPATH.

GAUSSCSE_GATE has the gate's folder and, after a space, a regular expression for the paths of the files.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any


def _watch(gate: Path, pattern: str) -> None:
    guarded = re.compile(pattern).search

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or not isinstance(args[0], str | Path):
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if guarded(str(args[0])) and (gate / "closed").exists():
            (gate / str(os.getpid())).mkdir(exist_ok=True)
            while (gate / "closed").exists():
                time.sleep(0.01)

    sys.addaudithook(hook)


if "GAUSSCSE_GATE" in os.environ:
    folder, _, regular_expression = os.environ["GAUSSCSE_GATE"].partition(" ")
    _watch(Path(folder), regular_expression)
