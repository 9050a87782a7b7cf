"""An encoder with operators that no training made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from pipeline.families.operations.encoder import Encoder
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.vector_decoder import VectorDecoder
from pipeline.models.encoder import GaussianEncoder
from tests.trial_of import OPERATIONS, tiny_encoder


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


def save_operator_model(backbone: Path, path: Path, sentences: Sequence[str]) -> Path:
    """A model whose operators do more than arithmetic, and whose decoder writes the words of some sentences."""
    encoder = tiny_encoder(backbone, max_length=32)
    ids: list[list[int]] = encoder.tokenizer(list(sentences))["input_ids"]  # type: ignore[assignment]
    vocabulary = torch.unique(torch.tensor([token for row in ids for token in row]))
    torch.manual_seed(2)
    decoder = VectorDecoder(encoder.backbone, OPERATIONS["decoder_layers"], encoder.dim, vocabulary, *encoder.sentence_ends)
    modules = SentenceOperators(encoder.dim, OPERATIONS["operators"], decoder)
    for parameter in modules.operators.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    capabilities = ["operators", "decoder"]
    encoder.save_pretrained(path, modules, trial={"objective": OPERATIONS}, capabilities=capabilities, similarity="cosine")
    return path
