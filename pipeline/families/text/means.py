"""Means of texts for the commands that need no more of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.utils.logs import log

if TYPE_CHECKING:
    from pipeline.families.text.transfer import Features
    from pipeline.models.encoder import GaussianEncoder


def means_of(encoder: GaussianEncoder, texts: Sequence[str], kind: str = "texts") -> Features:
    """(m, D) means of m texts, float32; a warning says how many were cut.

    Args:
        kind: what the warning calls the texts.
    """
    encoded, cut = encoder.encode_counted(texts)
    if cut:
        log.warning(f"{cut:,} of {len(texts):,} {kind} are longer than {encoder.params.max_length} tokens and were cut")
    return encoded.mean.numpy()
