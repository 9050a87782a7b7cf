"""Canary pairs: pairs of sentences in a published model's folder, with the model's own scores of them.

They are scored when the model is registered. Another process that loads the model must get the same scores, whatever its
libraries and its device; otherwise it does not compute the model that was registered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError

from pipeline.config.types import Section
from pipeline.data.cleaning import is_empty
from pipeline.models.model_dir import CANARIES, EXACT, Engine
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder

# How far a score may be from the recorded one, as a share of it, and of the mean of all. Other devices, library versions and
# batches change the last digits of float32; another tokenizer or other weights change the first ones.
_OF_SCORE, _OF_MEAN = 1e-2, 1e-3
# By an engine that rounds: how far the scores may be on average, as a share of their mean. In int8 it is 0.2 to 4 %.
_ON_AVERAGE = 0.1


class CanaryError(UserError):
    """A score is not the recorded one, so trying again is useless."""


class Canaries(Section):
    """n pairs of sentences and their scores."""

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    similarity: tuple[float, ...]
    """(n,) `SentencePairs.similarity` of hypothesis and premise."""
    relation: tuple[tuple[float, ...], ...] | None
    """(n, 4) `SentencePairs.relation` of premise and hypothesis; None if the model has no relation head."""

    def check(self, similarity: ArrayLike, relation: ArrayLike | None, engine: Engine = "torch") -> None:
        """Compare the scores that a running model gave with the recorded ones, which are torch's.

        An engine that rounds (not in `EXACT`) may move a single score far, but not all of them.

        Raises:
            CanaryError: a score is not finite or too far from its record; the message has the first such pair.
        """
        exact = engine in EXACT
        _check("similarity", self.similarity, similarity, exact)
        if self.relation is not None:
            _check("relation", self.relation, relation, exact)


def _check(name: str, recorded: ArrayLike, answered: ArrayLike | None, exact: bool) -> None:
    expected = np.asarray(recorded, dtype=np.float64)
    scores = np.asarray(np.nan if answered is None else answered, dtype=np.float64)
    if scores.shape != expected.shape:
        raise CanaryError(f"{name} of the canary pairs: {scores.shape} numbers where {expected.shape} are recorded")
    # Written so that NaN counts as too far.
    if not exact:
        if not (away := float(np.abs(scores - expected).mean() / np.abs(expected).mean())) <= _ON_AVERAGE:
            raise CanaryError(f"{name} of the canary pairs is on average {away:.0%} from the record; the engine rounds too much")
        return
    within = np.abs(scores - expected) <= _OF_SCORE * np.abs(expected) + _OF_MEAN * np.abs(expected).mean()
    far = np.flatnonzero(~within.reshape(len(expected), -1).all(axis=1))
    if len(far):
        pair = int(far[0])
        raise CanaryError(
            f"{name} of canary pair {pair} is {scores[pair].tolist()}, recorded is {expected[pair].tolist()} "
            f"({len(far)} of {len(expected)} pairs are off)"
        )


def record(encoder: GaussianEncoder, sentences: Sequence[str]) -> Canaries | None:
    """Canaries of a model: each sentence with the next one; None if there are fewer than two sentences.

    Empty ones, as a text of unknown characters decodes to, are left out.

    Raises:
        UserError: the model gives scores that are not finite.
    """
    sentences = [sentence for sentence in sentences if not is_empty(sentence)]
    if len(sentences) < 2:
        return None
    encoded, _ = encoder.encode_counted(sentences)
    first, second = encoded[:-1], encoded[1:]
    relation = None if encoder.relation_head is None else encoder.relation_head.probabilities(first, second).tolist()
    try:
        return Canaries(
            premises=tuple(sentences[:-1]),
            hypotheses=tuple(sentences[1:]),
            similarity=tuple(encoder.similarity(second, first).tolist()),
            relation=None if relation is None else tuple(tuple(row) for row in relation),
        )
    except ValidationError:
        raise UserError("the model gives canary pairs scores that are not finite") from None


def to_text(canaries: Canaries) -> str:
    """The text of canaries.json."""
    return json.dumps(canaries.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def read_canaries(folder: Path) -> Canaries | None:
    """The canaries in a model's folder; None if it has none.

    Raises:
        UserError: the file does not match `Canaries`.
    """
    file = folder / CANARIES
    if not file.is_file():
        return None
    try:
        return Canaries.model_validate_json(file.read_bytes())
    except ValidationError:
        raise UserError(f"{file}: not canary pairs that this version can read") from None
