"""What people ask of an encoder about two sentences: how like they are, whether one entails the other, and which way round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.calibration import Calibration
from pipeline.errors import UserError
from pipeline.gaussian import Gaussian, similarity

ScoreKind = Literal["kl", "kl-dimwise", "cosine"]
"""How a model compares: one of the two similarities, or, trained without variances (simcse), the cosine of the means."""
Sentences = Iterable[str] | Gaussian


class SentencePairs(ABC):
    """Questions about pairs, answered with what `encode` gives. Mixed into `GaussianEncoder`.

    All of them take two sentences, or two batches of the same length: of sentences, or of Gaussians that `encode` gave. Two
    sentences are answered by a number, batches by a tensor of (n,).
    """

    calibration: Calibration | None
    """The threshold that the model was given when it was registered."""
    score_kind: ScoreKind

    # A string is an iterable of strings as well, which pyright holds against the overloads below; it is taken for a sentence.
    @abstractmethod
    def encode(self, sentences: Iterable[str]) -> Gaussian:
        """Gaussian of (m, D)."""

    @overload
    def similarity(self, a: str, b: str) -> float: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def similarity(self, a: Sentences, b: Sentences) -> Tensor: ...

    def similarity(self, a: str | Sentences, b: str | Sentences) -> float | Tensor:
        """sim(a‖b) in (0, 1], by the similarity that the model was trained with; of a model without variances the cosine.

        Not symmetric: sim(hypothesis‖premise) is what says that the premise entails the hypothesis.

        Raises:
            UserError: the batches differ in length, or something in them is no text.
        """
        found = self._score(*self._both(a, b))
        return float(found) if isinstance(a, str) and isinstance(b, str) else found

    @overload
    def entails(  # pyright: ignore[reportOverlappingOverload]
        self, premise: str, hypothesis: str, *, threshold: float | None = None
    ) -> bool: ...

    @overload
    def entails(self, premise: Sentences, hypothesis: Sentences, *, threshold: float | None = None) -> Tensor: ...

    def entails(self, premise: str | Sentences, hypothesis: str | Sentences, *, threshold: float | None = None) -> bool | Tensor:
        """Whether sim(hypothesis‖premise) reaches the threshold (DESIGN section 2, Evaluation).

        Args:
            threshold: instead of the one that the model has; reached by a score that is not below it.

        Raises:
            UserError: the model has no threshold and none is given; or as `similarity`.
        """
        if threshold is None and self.calibration is None:
            raise UserError("this model has no threshold of its own: give one, or use a model of the registry, which has")
        p, h = self._both(premise, hypothesis)
        score = self._score(h, p)
        if threshold is not None:
            called = score >= threshold
        else:
            assert self.calibration is not None
            limit = self.calibration.threshold
            called = score >= limit if self.calibration.entailment_if == ">=" else score > limit
        return bool(called) if isinstance(premise, str) and isinstance(hypothesis, str) else called

    @overload
    def direction(self, a: str, b: str) -> float: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def direction(self, a: Sentences, b: Sentences) -> Tensor: ...

    def direction(self, a: str | Sentences, b: str | Sentences) -> float | Tensor:
        """sim(b‖a) − sim(a‖b): above 0 where a entails b rather than b entails a, below where it is the other way round.

        Of pairs of which one is known to entail the other; whether one does is asked of `entails`.

        Raises:
            UserError: the model has no variances; or as `similarity`.
        """
        if self.score_kind == "cosine":
            raise UserError("this model was trained without variances (objective simcse): it says nothing of direction")
        one, other = self._both(a, b)
        found = self._score(other, one) - self._score(one, other)
        return float(found) if isinstance(a, str) and isinstance(b, str) else found

    def _score(self, a: Gaussian, b: Gaussian) -> Tensor:
        with torch.inference_mode():
            if self.score_kind == "cosine":
                return F.cosine_similarity(a.mean, b.mean, dim=-1)
            return similarity(a, b, self.score_kind)

    def _both(self, a: str | Sentences, b: str | Sentences) -> tuple[Gaussian, Gaussian]:
        if isinstance(a, Gaussian) or isinstance(b, Gaussian):
            one, other = (side if isinstance(side, Gaussian) else self.encode(_listed(side)) for side in (a, b))
        else:
            left, right = _listed(a), _listed(b)
            # In one go: they are sorted by length together.
            both = self.encode([*left, *right])
            one, other = both[: len(left)], both[len(left) :]
        if len(one) != len(other):
            raise UserError(f"{len(one)} sentences against {len(other)}: each is compared with the one in its place")
        return one, other


def _listed(sentences: str | Iterable[str]) -> list[str]:
    return [sentences] if isinstance(sentences, str) else list(sentences)
