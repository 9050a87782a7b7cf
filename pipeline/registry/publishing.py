"""Adds the threshold, the canary pairs and the model card to a trained encoder before it is registered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pipeline.data.token_store import open_store
from pipeline.models.canaries import record
from pipeline.models.canaries import to_text as canaries_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, CARD, THRESHOLDS
from pipeline.models.threshold import Calibration, to_text
from pipeline.registry.card import About, card
from pipeline.utils.atomic_io import check_sums, write_sums

# Pairs; scoring them takes a fraction of a second.
_CANARIES = 32


@contextmanager
def published(encoder: Path, about: About, calibration: Calibration | None, tokens: Path) -> Iterator[Path]:
    """A copy of an encoder's folder with README.md, canaries.json and, if it has a threshold, thresholds.json, in the block.

    Args:
        tokens: the token store that the sentences of the canary pairs come from.

    Raises:
        UserError: a file of the encoder differs from its SHA-256 sum, the store is damaged, or the model gives no finite scores.
    """
    check_sums(encoder)
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        # Not their modes: files of DVC's cache are read-only.
        folder = Path(shutil.copytree(encoder, Path(temporary) / "encoder", copy_function=shutil.copyfile))
        add_canaries(folder, tokens)
        if calibration is not None:
            (folder / THRESHOLDS).write_text(to_text(calibration), encoding="utf-8")
        (folder / CARD).write_text(card(about, calibration), encoding="utf-8")
        write_sums(folder)
        yield folder


def add_canaries(folder: Path, tokens: Path) -> None:
    """Add canaries.json to a model's folder: sentences spread over a token store, and the model's scores of neighbours.

    A store with fewer than two sentences of known characters adds none.
    """
    store, encoder = open_store(tokens), GaussianEncoder.from_pretrained(folder)
    rows = np.unique(np.linspace(0, len(store) - 1, _CANARIES + 1).astype(int))
    canaries = record(encoder, encoder.text_of([store[row].tolist() for row in rows]))
    if canaries is None:
        return
    (folder / CANARIES).write_text(canaries_text(canaries), encoding="utf-8")
    write_sums(folder)
