"""A registry with models that have canary pairs, and a model with operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.config.load import load_params
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.vector_decoder import VectorDecoder
from pipeline.models.encoder import GaussianEncoder
from tests.conftest import PLAIN
from tests.serving.server import SENTENCES, Registry
from tests.trial_of import OPERATIONS


@pytest.fixture(scope="module")
def registry(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Registry]:
    """A registered model of its own for each module, still without versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        name = request.module.__name__.rpartition(".")[2]
        yield Registry.made(tmp_path_factory.mktemp("project"), tiny_backbone, name)


@pytest.fixture(scope="module")
def operator_model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with operators and a decoder."""
    params = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 32})
    encoder = GaussianEncoder.from_backbone(params, 1)
    ids: list[list[int]] = encoder.tokenizer(SENTENCES)["input_ids"]  # type: ignore[assignment]
    vocabulary = torch.unique(torch.tensor([token for row in ids for token in row]))
    torch.manual_seed(2)
    decoder = VectorDecoder(encoder.backbone, OPERATIONS["decoder_layers"], encoder.dim, vocabulary, *encoder.sentence_ends)
    modules = SentenceOperators(encoder.dim, OPERATIONS["operators"], decoder)
    for parameter in modules.operators.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    path = tmp_path_factory.mktemp("model") / "model"
    encoder.save_pretrained(path, modules, trial={"objective": OPERATIONS})
    return path
