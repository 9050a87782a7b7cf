"""The decoder over one vector against transformers' decoder with cross-attention, and its search against plain enumeration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel, RobertaConfig, RobertaModel

from pipeline.families.operations.vector_decoder import VectorDecoder

START, END = 2, 3
VECTOR = 12


def decoder_of(backbone: nn.Module, vocabulary: Tensor, layers: int = 2, seed: int = 1) -> VectorDecoder:
    torch.manual_seed(seed)
    return VectorDecoder(backbone, layers, VECTOR, vocabulary, START, END).eval()


@pytest.fixture(scope="module")
def backbone(tiny_backbone: Path) -> nn.Module:
    return AutoModel.from_pretrained(tiny_backbone).eval()


def small(vocabulary: int, seed: int) -> nn.Module:
    """A random BERT of a tiny vocabulary, with weights large enough for clear preferences."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertModel(BertConfig(vocab_size=vocabulary, initializer_range=0.7, **sizes)).eval()


def test_it_is_a_decoder_with_cross_attention_to_one_vector(backbone: Any) -> None:
    hidden = backbone.config.hidden_size
    config = BertConfig(**{**backbone.config.to_dict(), "is_decoder": True, "add_cross_attention": True})
    torch.manual_seed(3)
    theirs = BertModel(config, add_pooling_layer=False).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2)
    theirs = theirs.double()
    ours = decoder_of(theirs, torch.arange(config.vocab_size), layers=config.num_hidden_layers).double()
    # From 12 numbers to the hidden size, because BERT's encoder states have the size of its own.
    widen = torch.randn(VECTOR, hidden, dtype=torch.float64)
    with torch.no_grad():
        layers: Any = zip(ours.layers, theirs.encoder.layer, strict=True)
        for layer, other in layers:
            cross = other.crossattention
            value, out = cross.self.value, cross.output.dense
            layer.from_vector.weight.copy_(out.weight @ value.weight @ widen.T)
            layer.from_vector.bias.copy_(out.weight @ value.bias + out.bias)
            layer.vector_norm.load_state_dict(cross.output.LayerNorm.state_dict())
    tokens = torch.randint(4, config.vocab_size, (3, 9))
    vector = torch.randn(3, VECTOR, dtype=torch.float64)
    expected = theirs(tokens, encoder_hidden_states=(vector @ widen)[:, None]).last_hidden_state
    words = theirs.embeddings.word_embeddings.weight
    torch.testing.assert_close(ours(vector, tokens), expected @ words.T, atol=1e-9, rtol=1e-9)


def test_it_writes_only_ids_of_its_vocabulary(backbone: Any) -> None:
    decoder = decoder_of(backbone, torch.tensor([2, 3, 4, 5, 7, 9]))
    assert decoder(torch.randn(2, VECTOR), torch.zeros((2, 1), dtype=torch.long)).shape == (2, 1, 6)
    with torch.no_grad():
        decoder.bias[:] = torch.tensor([0.0, 0.0, 0.0, 0.0, 1e4, 0.0])
    assert decoder.write(torch.randn(1, VECTOR), longest=3) == [[7, 7, 7]]


def test_the_loss_is_the_cross_entropy_of_what_is_not_padding(backbone: Any) -> None:
    decoder = decoder_of(backbone, torch.arange(20))
    vector, tokens = torch.randn(2, VECTOR), torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    expected = 0.0
    for row, length in enumerate((4, 3)):
        log_p = decoder(vector[row : row + 1], tokens[row : row + 1, : length - 1]).log_softmax(-1)[0]
        expected -= sum(log_p[t, tokens[row, t + 1]].item() for t in range(length - 1))
    assert decoder.loss(vector, tokens, mask).item() == pytest.approx(expected, rel=1e-5)


def log_p_of(decoder: VectorDecoder, vector: Tensor, sentences: list[list[int]]) -> list[float]:
    """The log-probability of each sentence, in places of the vocabulary; without a cache, and without a search."""
    values: dict[int, float] = {}
    for length in {len(tokens) for tokens in sentences}:
        rows = [row for row, tokens in enumerate(sentences) if len(tokens) == length]
        asked = torch.tensor([[decoder.start, *sentences[row]] for row in rows])
        log_p = decoder(vector.expand(len(rows), -1), asked[:, :-1]).double().log_softmax(-1)
        sums = log_p.gather(2, asked[:, 1:, None]).sum((1, 2)).tolist()
        values |= dict(zip(rows, sums, strict=True))
    return [values[row] for row in range(len(sentences))]


def greedy(decoder: VectorDecoder, vector: Tensor, longest: int) -> list[int]:
    """The most probable token at each position, in the plainest form."""
    tokens: list[int] = []
    words = [token for token in range(len(decoder.vocabulary)) if token != decoder.start]
    while len(tokens) < longest:
        values = log_p_of(decoder, vector, [[*tokens, token] for token in words])
        token = words[int(np.argmax(values))]
        if token == decoder.end:
            break
        tokens.append(token)
    return tokens


def test_it_writes_the_most_probable_token_at_each_position() -> None:
    decoder = decoder_of(small(8, 1), torch.arange(8))
    for layer in decoder.layers:
        nn.init.normal_(layer.get_submodule("from_vector").get_parameter("weight"), std=2.0)
    vectors = torch.randn(4, VECTOR)
    expected = [greedy(decoder, vector, 4) for vector in vectors]
    assert decoder.write(vectors, longest=4) == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


def test_positions_start_where_the_backbones_do() -> None:
    config = RobertaConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, pad_token_id=1
    )
    roberta = RobertaModel(config, add_pooling_layer=False)
    decoder = decoder_of(roberta, torch.arange(12), layers=1)
    assert torch.equal(decoder.positions.weight, roberta.embeddings.position_embeddings.weight[2:])
