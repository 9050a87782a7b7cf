"""The code that a page of docs/ shows."""

from __future__ import annotations

import re

from tests.copies import ROOT


def python_of(page: str, heading: str) -> list[str]:
    """The Python blocks of one section (`## heading`) of a page."""
    _, _, rest = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    blocks = re.findall(r"^```python\n(.*?)^```$", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    assert blocks, f"docs/{page} has no Python under {heading!r}"
    return blocks
