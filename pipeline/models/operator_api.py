"""Operators on sentences, for users: fuse, difference, compress, and decode an embedding into a sentence (InterSent, 2023)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from pipeline.config.objective import Operation
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.operators import SentenceOperators
from pipeline.utils.errors import UserError

Embedded = str | Iterable[str] | Tensor | Gaussian
"""A sentence or several, an embedding (D,) or several (n, D), or what `encode` gives."""


@dataclass(frozen=True, slots=True)
class TrainedOperators:
    """The operators of a model; not a module, so the weights of the encoder do not include them."""

    modules: SentenceOperators


class SentenceAlgebra(ABC):
    """Methods that make an embedding from one or two sentences, and a sentence from an embedding. A mixin of `GaussianEncoder`.

    An input is a sentence, a list of sentences, an embedding, or what another of these methods returned, so operators can be
    chained: `compress(fuse(a, b))`. One sentence, or an embedding of (D,), gives one result; n of them give n.
    """

    operators: TrainedOperators | None
    """The operators, if the model was trained with the objective intersent."""

    @abstractmethod
    def encode(self, sentences: Iterable[str]) -> Gaussian:
        """Gaussian of (m, D)."""

    @abstractmethod
    def text_of(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The sentences of token ids."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Most tokens of a sentence, with its start and end."""

    def fuse(self, a: Embedded, b: Embedded) -> Tensor:
        """The embedding of a sentence that says what a and b say, (D,) or (n, D).

        Raises:
            UserError: the model has no operators, or the inputs differ in number.
        """
        return self._operate("fusion", a, b)

    def difference(self, a: Embedded, b: Embedded) -> Tensor:
        """The embedding of what a says and b does not, (D,) or (n, D); meant for a b that a contains. Errors as in `fuse`."""
        return self._operate("difference", a, b)

    def compress(self, a: Embedded) -> Tensor:
        """The embedding of a shorter sentence with the main point of a, (D,) or (n, D). Errors as in `fuse`."""
        return self._operate("compression", a)

    @overload
    def decode(self, z: str, *, beams: int = 1) -> str: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def decode(self, z: Tensor, *, beams: int = 1) -> str | list[str]: ...

    @overload
    def decode(self, z: Iterable[str] | Gaussian, *, beams: int = 1) -> list[str]: ...

    def decode(self, z: Embedded, *, beams: int = 1) -> str | list[str]:
        """The sentence that the decoder writes for an embedding; for n embeddings, n sentences.

        Args:
            beams: of the beam search; 1 takes the most probable token at each position.

        Raises:
            UserError: the model has no decoder, or `beams` is below 1.
        """
        if beams < 1:
            raise UserError(f"beams is {beams}: at least 1 is needed")
        vectors, single = self._vectors(z)
        texts = self.text_of(self.write_ids(vectors, beams=beams))
        return texts[0] if single else texts

    def write_ids(self, vectors: Tensor, *, beams: int = 1) -> list[list[int]]:
        """The token ids of the sentences that the decoder writes for (n, D) embeddings, without start and end; as `decode`."""
        decoder = self._trained().decoder
        if decoder is None:
            raise UserError("this model has no decoder: it was trained with objective.generation_weight 0")
        # The start is not written, and the end takes no position.
        longest = min(self.longest - 2, decoder.positions.num_embeddings - 1)
        return decoder.write(vectors, longest, beams) if len(vectors) else []

    @torch.inference_mode()
    def _operate(self, operation: Operation, a: Embedded, b: Embedded | None = None) -> Tensor:
        modules = self._trained()
        first, single = self._vectors(a)
        second = None
        if b is not None:
            second, other_single = self._vectors(b)
            if len(first) != len(second):
                raise UserError(f"{len(first)} sentences with {len(second)}: each goes with the one at the same position")
            single = single and other_single
        output = modules.operators(operation, first, second)
        return output[0] if single else output

    def _trained(self) -> SentenceOperators:
        if self.operators is None:
            raise UserError("this model has no sentence operators: train one with the objective intersent (docs/intersent.md)")
        return self.operators.modules

    def _vectors(self, given: Embedded) -> tuple[Tensor, bool]:
        """(n, D) on the CPU, and whether one sentence or embedding was given."""
        if isinstance(given, Tensor):
            return (given[None] if given.ndim == 1 else given).cpu(), given.ndim == 1
        if isinstance(given, Gaussian):
            return given.mean.cpu(), False
        single = isinstance(given, str)
        return self.encode([given] if isinstance(given, str) else given).mean, single
