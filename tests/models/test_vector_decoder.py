"""The decoder over one vector against transformers' decoder with cross-attention, and its search against plain enumeration."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel

from pipeline.models.vector_decoder import VectorDecoder, vocabulary_of

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
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        initializer_range=0.7,
    )
    return BertModel(config).eval()


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


def test_its_vocabulary_is_what_occurs(backbone: Any) -> None:
    vocabulary = vocabulary_of(torch.tensor([[9, 4, 4], [7, 9, 5]]), START, END)
    assert vocabulary.tolist() == [2, 3, 4, 5, 7, 9]
    decoder = decoder_of(backbone, vocabulary)
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


def by_hand(decoder: VectorDecoder, vector: Tensor, sentence: list[int]) -> float:
    """The log-probability of places of the vocabulary, without a cache."""
    tokens = torch.tensor([[decoder.start, *sentence]])
    log_p = decoder(vector, tokens[:, :-1]).double().log_softmax(-1)[0]
    return log_p.gather(1, tokens[0, 1:, None]).sum().item()


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_the_greedy_choice(seed: int) -> None:
    decoder = decoder_of(small(30, seed), torch.arange(30), seed=seed)
    vectors = torch.randn(5, VECTOR)
    for vector, written in zip(vectors, decoder.write(vectors, longest=7), strict=True):
        tokens = [decoder.start]
        while len(tokens) < 8:
            tokens.append(int(decoder(vector[None], torch.tensor([tokens]))[0, -1].argmax()))
            if tokens[-1] == decoder.end:
                break
        assert written == [token for token in tokens[1:] if token != decoder.end]


@pytest.mark.parametrize("seed", range(6))
def test_many_beams_are_exhaustive_search(seed: int) -> None:
    # Six ids: two special ones and four words.
    decoder = decoder_of(small(6, seed), torch.arange(6), seed=seed)
    vectors = torch.randn(3, VECTOR)
    every = [
        [*words, decoder.end] if length < 4 else list(words)
        for length in range(5)
        for words in product([token for token in range(6) if token != decoder.end], repeat=length)
    ]
    found = decoder.write(vectors, longest=4, beams=6**4)
    for vector, written in zip(vectors, found, strict=True):
        best = max(every, key=lambda sentence: by_hand(decoder, vector[None], sentence))
        assert written == [token for token in best if token != decoder.end]


def test_more_beams_never_find_a_less_probable_sentence_of_full_width() -> None:
    decoder = decoder_of(small(6, 11), torch.arange(6), seed=11)
    vector = torch.randn(1, VECTOR)

    def score(beams: int) -> float:
        written = decoder.write(vector, longest=4, beams=beams)[0]
        return by_hand(decoder, vector, [*written, decoder.end] if len(written) < 4 else written)

    assert score(6**4) >= max(score(1), score(2)) - 1e-6


def test_it_learns_to_write_what_vectors_say(backbone: Any) -> None:
    torch.manual_seed(5)
    lengths = torch.randint(2, 7, (32,))
    rows = [[START, *torch.randint(4, 16, (int(length),)).tolist(), END] for length in lengths]
    vocabulary = vocabulary_of(torch.tensor([token for row in rows for token in row]), START, END)
    decoder = decoder_of(backbone, vocabulary).train()
    tokens = nn.utils.rnn.pad_sequence([torch.searchsorted(vocabulary, torch.tensor(row)) for row in rows], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
    vectors = torch.randn(32, VECTOR)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    for _ in range(250):
        loss = decoder.loss(vectors, tokens, mask) / 32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert decoder.eval().write(vectors, longest=10) == [row[1:-1] for row in rows]
    assert decoder.write(vectors, longest=10, beams=4) == [row[1:-1] for row in rows]
