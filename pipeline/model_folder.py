"""What lies in the folder of a model that is handed on, besides what `GaussianEncoder` computes with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.errors import UserError
from pipeline.files import SUMS, check_sums, read_json

THRESHOLDS = "thresholds.json"
CARD = "README.md"
_BESIDE = (THRESHOLDS, CARD)


def dimensions(folder: Path) -> int:
    """D of the Gaussians that the model of a folder gives.

    Raises:
        UserError: its config.json does not say.
    """
    dim = read_json(folder / "config.json").get("dim")
    if not isinstance(dim, int):
        raise UserError(f"{folder}/config.json: does not say how many dimensions it has; is it a folder of save_pretrained?")
    return dim


def content_digest(folder: Path) -> str:
    """SHA-256 over the sums of the files that decide what the model computes: not its card, not its threshold.

    Raises:
        UserError: a file differs from its sum.
    """
    check_sums(folder)
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines(keepends=True)
    return hashlib.sha256("".join(line for line in lines if line.split()[-1] not in _BESIDE).encode()).hexdigest()
