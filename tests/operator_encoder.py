"""An encoder with operators that no training made."""

from __future__ import annotations

from pathlib import Path

from pipeline.families.operations.encoder import Encoder
from pipeline.families.operations.operators import SentenceOperators
from pipeline.models.encoder import GaussianEncoder


def with_operators(encoder: GaussianEncoder, modules: SentenceOperators) -> Encoder:
    """The same encoder with these operators."""
    encoder.__class__ = Encoder
    assert isinstance(encoder, Encoder)
    encoder._trained = [modules]
    return encoder


def operator_encoder(folder: Path) -> Encoder:
    """The saved encoder, which has operators."""
    encoder = GaussianEncoder.from_pretrained(folder)
    assert isinstance(encoder, Encoder)
    return encoder
