"""Pair API of the encoder: similarity, entailment, direction."""

# A string is also an iterable of strings, so overloads overlap; a string counts as one sentence.
# pyright: reportOverlappingOverload=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.decision import called, decided
from pipeline.data.schema import RELATIONS, RelationName
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.relation_head import Relation, ScoreKind
from pipeline.models.threshold import Calibration, rule_of
from pipeline.utils.errors import UserError

Sentences = Iterable[str] | Gaussian


class Relations(NamedTuple):
    """Probabilities of the relations of n pairs, (n,) each; the four sum to 1."""

    entailment: Tensor
    neutral: Tensor
    contradiction: Tensor
    reversed: Tensor  # type: ignore[assignment]
    """The hypothesis entails the premise, but not the other way round."""


class SentencePairs(ABC):
    """Methods that compare pairs of sentences by means of `encode`. A mixin of `GaussianEncoder`.

    Each method takes two sentences, or two batches of the same length n. A batch holds sentences or is a Gaussian from `encode`.
    The result is a number (or bool) for two sentences, a tensor of (n,) for batches.
    """

    calibration: Calibration | None
    """The threshold that the model got when it was registered."""
    score_kind: ScoreKind
    relation_head: Relation | None
    """The fitted relation head, if the model has one; `entails` and `direction` then use its score."""

    @abstractmethod
    def encode(self, sentences: Iterable[str]) -> Gaussian:
        """Gaussian of (m, D)."""

    @overload
    def similarity(self, a: str, b: str) -> float: ...

    @overload
    def similarity(self, a: Sentences, b: Sentences) -> Tensor: ...

    def similarity(self, a: str | Sentences, b: str | Sentences) -> float | Tensor:
        """sim(a‖b) in (0, 1], by the similarity that the model was trained with; the cosine if the model has no variances.

        Not symmetric: sim(hypothesis‖premise) is the score of "the premise entails the hypothesis".

        Raises:
            UserError: the batches differ in length, or an item is not valid text.
        """
        values = self._score(*self._both(a, b))
        return float(values) if isinstance(a, str) and isinstance(b, str) else values

    @overload
    def score(self, premise: str, hypothesis: str) -> float: ...

    @overload
    def score(self, premise: Sentences, hypothesis: Sentences) -> Tensor: ...

    def score(self, premise: str | Sentences, hypothesis: str | Sentences) -> float | Tensor:
        """How much the premise entails the hypothesis: the score that the results are computed from.

        The probability of entailment if the model has a relation head, otherwise sim(hypothesis‖premise).

        Raises:
            UserError: as in `similarity`.
        """
        p, h = self._both(premise, hypothesis)
        scores = self._score(h, p) if self.relation_head is None else self.relation_head.score(p, h)
        return float(scores) if isinstance(premise, str) and isinstance(hypothesis, str) else scores

    @overload
    def entails(self, premise: str, hypothesis: str, *, threshold: float | None = None) -> bool: ...

    @overload
    def entails(self, premise: Sentences, hypothesis: Sentences, *, threshold: float | None = None) -> Tensor: ...

    def entails(self, premise: str | Sentences, hypothesis: str | Sentences, *, threshold: float | None = None) -> bool | Tensor:
        """Whether the score of the pair (`score`) reaches the threshold.

        A model with a relation head and no threshold asks whether entailment is the likeliest relation, as `decide` does.

        Args:
            threshold: used instead of the model's own; a score equal to it counts as entailment.

        Raises:
            UserError: the model has neither and none is given; and the errors of `similarity`.
        """
        if threshold is not None and not (isinstance(threshold, Real) and math.isfinite(threshold)):
            raise UserError(f"threshold is {threshold!r}: write a number")
        least, rule = rule_of(self.calibration) if threshold is None else (threshold, ">=")
        both = self._both(premise, hypothesis)
        if least is not None:
            yes = called(self.score(*both), least, rule)
        elif self.relation_head is not None:
            yes = torch.tensor([name == "entailment" for name in self.decide(*both)])
        else:
            raise UserError("this model has no threshold; give one, or use a model from the registry, which has one")
        return bool(yes) if isinstance(premise, str) and isinstance(hypothesis, str) else yes

    @overload
    def decide(self, premise: str, hypothesis: str) -> RelationName: ...

    @overload
    def decide(self, premise: Sentences, hypothesis: Sentences) -> list[RelationName]: ...

    def decide(self, premise: str | Sentences, hypothesis: str | Sentences) -> RelationName | list[RelationName]:
        """The relation that the model settles on: entailment where `entails` is true, else the likeliest of the others.

        Raises:
            UserError: as in `relation`.
        """
        names = decided(torch.stack(self.relation(*self._both(premise, hypothesis)), 1), *rule_of(self.calibration))
        return names[0] if isinstance(premise, str) and isinstance(hypothesis, str) else names

    @overload
    def direction(self, a: str, b: str) -> float: ...

    @overload
    def direction(self, a: Sentences, b: Sentences) -> Tensor: ...

    def direction(self, a: str | Sentences, b: str | Sentences) -> float | Tensor:
        """Score of "a entails b" − score of "b entails a": positive if a rather entails b, negative if b rather entails a.

        Without a relation head this is sim(b‖a) − sim(a‖b).

        Only for pairs in which one sentence is known to entail the other; `entails` tests whether it does.

        Raises:
            UserError: the model has neither variances nor a relation head; and the errors of `similarity`.
        """
        if self.score_kind == "cosine" and self.relation_head is None:
            raise UserError("this model was trained without variances, so it has no direction")
        first, second = self._both(a, b)
        difference = self.score(first, second) - self.score(second, first)
        return float(difference) if isinstance(a, str) and isinstance(b, str) else difference

    @overload
    def relation(self, premise: str, hypothesis: str) -> dict[RelationName, float]: ...

    @overload
    def relation(self, premise: Sentences, hypothesis: Sentences) -> Relations: ...

    def relation(self, premise: str | Sentences, hypothesis: str | Sentences) -> dict[RelationName, float] | Relations:
        """Probabilities of the relations of two sentences; they sum to 1.

        Returns:
            by name: a dict for two sentences, `Relations` for batches.

        Raises:
            UserError: the model has no relation head; and the errors of `similarity`.
        """
        if self.relation_head is None:
            raise UserError("this model has no relation head; train one with model.relation_head: tokens")
        probabilities = self.relation_head.probabilities(*self._both(premise, hypothesis))
        if isinstance(premise, str) and isinstance(hypothesis, str):
            return dict(zip(RELATIONS, probabilities[0].tolist(), strict=True))
        return Relations(*probabilities.unbind(1))

    def _score(self, a: Gaussian, b: Gaussian) -> Tensor:
        with torch.inference_mode():
            if self.score_kind == "cosine":
                return F.cosine_similarity(a.mean, b.mean, dim=-1)
            return similarity(a, b, self.score_kind)

    def _both(self, a: str | Sentences, b: str | Sentences) -> tuple[Gaussian, Gaussian]:
        if isinstance(a, Gaussian) or isinstance(b, Gaussian):
            first, second = (side if isinstance(side, Gaussian) else self.encode(_listed(side)) for side in (a, b))
        else:
            left, right = _listed(a), _listed(b)
            # One call, so that both sides are sorted by length together.
            both = self.encode([*left, *right])
            first, second = both[: len(left)], both[len(left) :]
        if len(first) != len(second):
            raise UserError(f"{len(first)} sentences against {len(second)}: each is compared with the one at the same position")
        return first, second


def _listed(sentences: str | Iterable[str]) -> list[str]:
    if not isinstance(sentences, Iterable):
        raise UserError(f"a sentence is {type(sentences).__name__}, not text; give a text, a list of texts or a Gaussian")
    return [sentences] if isinstance(sentences, str) else list(sentences)
