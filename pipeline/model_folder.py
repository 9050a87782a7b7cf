"""What lies in the folder of a model that is handed on, besides what `GaussianEncoder` computes with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.files import SUMS, check_sums

THRESHOLDS = "thresholds.json"
CARD = "README.md"
_BESIDE = (THRESHOLDS, CARD)


def content_digest(folder: Path) -> str:
    """SHA-256 over the sums of the files that decide what the model computes: not its card, not its threshold.

    Raises:
        UserError: a file differs from its sum.
    """
    check_sums(folder)
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines(keepends=True)
    return hashlib.sha256("".join(line for line in lines if line.split()[-1] not in _BESIDE).encode()).hexdigest()
