"""Adds the threshold and the model card to a trained encoder before it is registered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.models.model_dir import CARD, THRESHOLDS
from pipeline.models.threshold import Calibration, to_text
from pipeline.registry.card import About, card
from pipeline.utils.atomic_io import check_sums, write_sums


@contextmanager
def published(encoder: Path, about: About, calibration: Calibration | None) -> Iterator[Path]:
    """A copy of an encoder's folder with README.md and, if it has a threshold, thresholds.json added, while the block runs.

    Raises:
        UserError: a file of the encoder differs from its SHA-256 sum.
    """
    check_sums(encoder)
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        folder = Path(shutil.copytree(encoder, Path(temporary) / "encoder"))
        if calibration is not None:
            (folder / THRESHOLDS).write_text(to_text(calibration), encoding="utf-8")
        (folder / CARD).write_text(card(about, calibration), encoding="utf-8")
        write_sums(folder)
        yield folder
