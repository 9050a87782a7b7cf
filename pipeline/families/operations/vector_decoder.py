"""A decoder that writes a sentence from one vector.

It is BERT's decoder with cross-attention to a sequence of length one. Such attention has a single slot to look at, so it is
an affine map of the vector, the same at every position: each layer adds a bias that depends on the vector alone. InterSent (2023)
uses BART in the same way, with one encoder state.

Shapes: n sentences, T positions, H hidden size, K ids of the vocabulary that occurs, D size of the vector.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.distributed.transfer import to_device
from pipeline.models.packed_bert import first_position, is_bert_shaped

Cache = list[tuple[Tensor, Tensor]]
"""For each layer the keys and values of the positions so far, (n, heads, T, H / heads) each."""


class _Layer(nn.Module):
    """A layer of BERT's decoder; its cross-attention is the linear layer `from_vector`."""

    def __init__(self, layer: Any, vector: int) -> None:
        super().__init__()
        attention = layer.attention.self
        hidden: int = attention.query.in_features
        self.heads: int = attention.num_attention_heads
        self.query, self.key, self.value = (copy.deepcopy(part) for part in (attention.query, attention.key, attention.value))
        self.attended = copy.deepcopy(layer.attention.output.dense)
        self.attended_norm = copy.deepcopy(layer.attention.output.LayerNorm)
        self.from_vector = nn.Linear(vector, hidden)
        self.vector_norm = nn.LayerNorm(hidden, eps=self.attended_norm.eps)
        self.inner = copy.deepcopy(layer.intermediate.dense)
        self.activation = layer.intermediate.intermediate_act_fn
        self.outer = copy.deepcopy(layer.output.dense)
        self.outer_norm = copy.deepcopy(layer.output.LayerNorm)

    def forward(self, x: Tensor, vector: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(n, T, H) → (n, T, H), and the keys and values of all positions so far."""
        query, key, value = (self._by_heads(layer(x)) for layer in (self.query, self.key, self.value))
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        # torch's fused attention is slower than two products for so few positions. With a past there is one new position, which
        # sees all others.
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if past is None:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        context = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = self.attended_norm(x + self.attended(context))
        x = self.vector_norm(x + self.from_vector(vector)[:, None])
        x = self.outer_norm(x + self.outer(self.activation(self.inner(x))))
        return x, (key, value)

    def _by_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class VectorDecoder(nn.Module):
    """Embeddings, layers and output of a decoder over one vector; without dropout.

    Args:
        backbone: a BERT-shaped encoder. The decoder starts with copies of its embeddings and its first layers. Only what has no
            counterpart there is new: the bias from the vector and its LayerNorm, and the bias of the output.
        layers: how many; at most those of the backbone (`depth`).
        vector: D.
        vocabulary: (K,) the token ids that it can write, rising, with `start` and `end` among them.
        start: the id before the first token; it is never written.
        end: the id after the last token.
    """

    def __init__(self, backbone: nn.Module, layers: int, vector: int, vocabulary: Tensor, start: int, end: int) -> None:
        super().__init__()
        bert: Any = backbone
        vocabulary = vocabulary.long()
        self.words = nn.Embedding.from_pretrained(
            bert.embeddings.word_embeddings.weight[vocabulary].detach().clone(), freeze=False
        )
        positions: Tensor = bert.embeddings.position_embeddings.weight[first_position(bert.embeddings) :]
        self.positions = nn.Embedding.from_pretrained(positions.detach().clone(), freeze=False)
        self.kind = nn.Parameter(bert.embeddings.token_type_embeddings.weight[0].detach().clone())
        self.norm = copy.deepcopy(bert.embeddings.LayerNorm)
        self.layers = nn.ModuleList(_Layer(layer, vector) for layer in bert.encoder.layer[:layers])
        self.bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.vocabulary: Tensor
        self.register_buffer("vocabulary", vocabulary.clone())
        self.start, self.end = (int(torch.searchsorted(vocabulary, torch.tensor(token))) for token in (start, end))

    def places(self, ids: Tensor) -> Tensor:
        """The places in the vocabulary of token ids, of any shape; of other ids, any place."""
        return torch.searchsorted(self.vocabulary, ids.contiguous()).clamp(max=len(self.vocabulary) - 1)

    def forward(self, vector: Tensor, tokens: Tensor) -> Tensor:
        """(n, T, K) logits of the next token at each position.

        Args:
            vector: (n, D).
            tokens: (n, T) places in the vocabulary, the start first.
        """
        return self._step(vector, tokens, 0, None)[0]

    def loss(self, vector: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Σ over all tokens after the first of their cross-entropy, ().

        Args:
            vector: (n, D).
            tokens: (n, T) places in the vocabulary, from the start to the end.
            mask: (n, T) False for padding. On the CPU: how many tokens count must be known without waiting for a GPU.
        """
        logits = self(vector, tokens[:, :-1])
        asked = to_device(mask[:, 1:].flatten().nonzero()[:, 0], logits.device)
        return F.cross_entropy(logits.flatten(0, 1)[asked], tokens[:, 1:].flatten()[asked], reduction="sum")

    @torch.inference_mode()
    def write(self, vector: Tensor, longest: int) -> list[list[int]]:
        """The token ids of a sentence for each vector, without start and end: the most probable token at each position.

        Args:
            vector: (n, D).
            longest: most tokens of a sentence.
        """
        tokens = torch.full((len(vector), 1), self.start, device=vector.device)
        ended = torch.zeros(len(vector), dtype=torch.bool, device=vector.device)
        cache: Cache | None = None
        for position in range(longest):
            logits, cache = self._step(vector, tokens[:, -1:], position, cache)
            logits[:, -1, self.start] = float("-inf")
            token = logits[:, -1].argmax(-1)
            tokens = torch.cat((tokens, token[:, None]), 1)
            ended |= token == self.end
            if bool(ended.all()):
                break
        # Places in the vocabulary; what follows the end does not count.
        found = tokens[:, 1:].tolist()
        return [self.vocabulary[row[: row.index(self.end)] if self.end in row else row].tolist() for row in found]

    def _step(self, vector: Tensor, tokens: Tensor, first: int, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Logits at positions first … first + T − 1, and the cache with them."""
        x = self.words(tokens) + self.positions.weight[first : first + tokens.shape[1]] + self.kind
        x = self.norm(x)
        kept: Cache = []
        for number, layer in enumerate(self.layers):
            x, pair = layer(x, vector, None if cache is None else cache[number])
            kept.append(pair)
        return F.linear(x, self.words.weight, self.bias), kept


def depth(backbone: nn.Module) -> int:
    """How many layers of this backbone a decoder can start from; 0 if it is not BERT-shaped."""
    bert: Any = backbone
    return len(bert.encoder.layer) if is_bert_shaped(backbone) else 0
