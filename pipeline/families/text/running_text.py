"""What embeddings say about running text: the next sentence among others, and the bound of CURL with documents as classes.

CURL is Arora et al., "A Theoretical Analysis of Contrastive Unsupervised Representation Learning" (2019). All logarithms have
base 2, so that a score of 0 costs 1.

Shapes: S sentences in order, F features, C documents, b sentences in a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

if TYPE_CHECKING:
    from pipeline.families.text.documents import Document
    from pipeline.models.encoder import GaussianEncoder

Features = NDArray[np.float32]
Numbers = NDArray[np.int64]

AMONG = 64
"""Candidates for the next sentence."""
IN_DOCUMENTS = 3
"""A sentence that occurs in at least so many documents counts as boilerplate: a licence, a heading, a greeting."""
# Numbers in one array of scores or gathered features, about 100 MB.
_GATHERED = 1 << 24


@dataclass(frozen=True, slots=True)
class Text:
    """Embedded documents."""

    features: Features
    """(S, F)."""
    document: Numbers
    """(S,), from 0, never falling: the sentences of a document are together."""

    @property
    def sizes(self) -> Numbers:
        """(C,) sentences of each document."""
        return np.bincount(self.document)


def embedded(documents: Iterable[Document], encode: Callable[[list[str]], Features], most: int | None = None) -> Text:
    """Embed documents; those without a sentence are left out.

    Args:
        encode: m sentences → (m, F).
        most: of each document only so many sentences, the first.

    Raises:
        UserError: there are fewer than two documents, no document has two sentences, or an embedding is not finite.
    """
    kept = [document.sentences[:most] for document in documents if document.sentences]
    if len(kept) < 2:
        raise UserError(
            f"the text has {len(kept)} document{'s' * (len(kept) != 1)} with sentences; documents are the classes, so at least "
            "two are needed"
        )
    sizes = [len(sentences) for sentences in kept]
    if max(sizes) < 2:
        raise UserError("no document has two sentences in a row; a table with a row for each sentence needs --document")
    features = encode([sentence for sentences in kept for sentence in sentences])
    if not np.isfinite(features).all():
        raise UserError("an embedding is not finite; the model is damaged")
    return Text(features, np.repeat(np.arange(len(kept)), sizes))


def means_of(encoder: GaussianEncoder, texts: Sequence[str], kind: str) -> Features:
    """(m, D) means of m texts, float32; a warning says how many were cut. `kind`: what it calls the texts."""
    encoded, reading = encoder.encode_counted(texts)
    for line in reading.lines(encoder.longest):
        log.warning(f"of {len(texts):,} {kind} {line}")
    return encoded.mean.numpy()


def neighbours(document: NDArray[np.integer], among: int = AMONG) -> Numbers:
    """(groups, among) the first sentence of each pair of neighbours in a document.

    Pairs are taken in order, `among` at a time, also across documents. The pairs left over at the end are not used.
    """
    first = np.flatnonzero(document[:-1] == document[1:])
    return first[: len(first) // among * among].reshape(-1, among)


def next_sentence(groups: Numbers, scores: Callable[[Numbers, Numbers], NDArray[np.floating]]) -> NDArray[np.bool_]:
    """Whether the next sentence has the highest score, for each pair of `neighbours`.

    The candidates of a pair's first sentence are the second sentences of the group's pairs, without itself. Equal scores count as
    wrong.

    Args:
        groups: (groups, among).
        scores: (a,) sentences and (c,) candidates → (a, c).

    Returns:
        (groups · among,).
    """
    right = np.zeros(groups.shape, np.bool_)
    for group, sentences in enumerate(groups):
        found = np.array(scores(sentences, sentences + 1), np.float64)
        found[sentences[:, None] == sentences[None, :] + 1] = -np.inf
        of_next = found.diagonal().copy()
        np.fill_diagonal(found, -np.inf)
        right[group] = of_next > found.max(1)
    return right.ravel()


def by_cosine(features: Features) -> Callable[[Numbers, Numbers], Features]:
    """The score of `next_sentence` that is the cosine of the features."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return lambda sentences, candidates: unit[sentences] @ unit[candidates].T


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """The unsupervised loss over some sentences, whose blocks are drawn or follow them."""

    loss: float
    """L_un."""
    error: float
    """Standard error of the loss."""
    collision: float
    """τ: how probable it is that two of these sentences are of one document."""

    @property
    def bound(self) -> float:
        """(L_un − τ) / (1 − τ)."""
        return (self.loss - self.collision) / (1 - self.collision)


@dataclass(frozen=True, slots=True)
class Bound:
    """CURL's quantities for one block size."""

    block: int
    supervised: float
    """L_sup: loss of telling a document from another one by their mean embeddings, over all sentences and pairs of documents."""
    drawn: BlockLoss
    """Blocks are drawn from the document of the sentence, as the theory has it. L_sup does not exceed the bound (Lemma 4.3), but
    for the error of sampling."""
    following: BlockLoss
    """Blocks follow the sentence, as in training; of the sentences that have so many after them. nan if fewer than two documents
    have such a sentence. Nothing guarantees the bound: what follows a sentence is not an independent draw."""


def scaled(features: Features, squared_norm: float) -> Features:
    """Each row with this squared norm; the losses depend on it."""
    norms = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return (features * (np.sqrt(squared_norm) / norms)).astype(np.float32)


def curl(text: Text, blocks: Sequence[int], draws: int, seed: int) -> Iterator[Bound]:
    """The bound for each block size.

    Args:
        draws: sentences for which the unsupervised losses draw blocks. The supervised loss is exact.
        seed: of the draws.
    """
    every = np.arange(len(text.document))
    supervised = _supervised(text)
    starts = np.cumsum(text.sizes) - text.sizes
    to_come = text.sizes[text.document] - (every - starts[text.document]) - 1
    for b in blocks:
        random = np.random.default_rng((seed, b))
        drawn = _unsupervised(text, every, b, draws, random, following=False)
        yield Bound(b, supervised, drawn, _unsupervised(text, np.flatnonzero(to_come >= b), b, draws, random, following=True))


def _collision(document: Numbers) -> float:
    share = np.bincount(document) / len(document)
    return float(share @ share)


def _loss(margin: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.logaddexp(0, -margin) / np.log(2)


def _supervised(text: Text) -> float:
    sizes = text.sizes
    ends = np.cumsum(sizes)
    means = np.stack([text.features[end - size : end].mean(0, dtype=np.float64) for size, end in zip(sizes, ends, strict=True)])
    total, share = 0.0, sizes / sizes.sum()
    step = max(1, _GATHERED // len(sizes))
    for start in range(0, len(text.document), step):
        own = text.document[start : start + step]
        scores = text.features[start : start + step].astype(np.float64) @ means.T
        margin = scores[np.arange(len(own)), own][:, None] - scores
        # Against its own document a sentence has margin 0 and loss 1. Only pairs of different documents count.
        total += float((_loss(margin) @ share - share[own]).sum())
    return total / len(text.document) / (1 - _collision(text.document))


def _unsupervised(text: Text, allowed: Numbers, b: int, draws: int, random: np.random.Generator, *, following: bool) -> BlockLoss:
    """The loss for sentences among `allowed` (m,)."""
    if len(np.unique(text.document[allowed])) < 2:
        return BlockLoss(math.nan, math.nan, math.nan)
    sizes = text.sizes
    starts = np.cumsum(sizes) - sizes
    losses: list[NDArray[np.float64]] = []
    step = max(1, _GATHERED // (b * text.features.shape[1]))
    for start in range(0, draws, step):
        m = min(step, draws - start)
        sentence, other = random.choice(allowed, m), random.choice(allowed, m)
        if following:
            positive, negative = (rows[:, None] + np.arange(1, b + 1) for rows in (sentence, other))
        else:
            positive, negative = (
                starts[document][:, None] + (random.random((m, b)) * sizes[document][:, None]).astype(np.int64)
                for document in (text.document[sentence], text.document[other])
            )
        gap = text.features[positive].mean(1) - text.features[negative].mean(1)
        losses.append(_loss(np.einsum("ij,ij->i", text.features[sentence], gap, dtype=np.float64)))
    every = np.concatenate(losses)
    return BlockLoss(float(every.mean()), float(every.std(ddof=1) / np.sqrt(len(every))), _collision(text.document[allowed]))
