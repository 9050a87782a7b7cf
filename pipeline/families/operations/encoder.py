"""Operators on sentences, for users: fuse, difference, compress, and decode an embedding into a sentence (InterSent, 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, overload

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline.data.schema import Operation
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.vector_decoder import VectorDecoder
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import OBJECTIVE_WEIGHTS
from pipeline.utils.errors import UserError
from pipeline.utils.safetensors_io import write_tensors

OPERATORS = "operators.safetensors"
"""Weights of the operators: for NAME in fusion, difference, compression the output is s + W₂ max(W₁ x + b₁, 0) + b₂, where x are
the inputs side by side, and s is their sum, their difference or the input itself. The parameters are called NAME.0.weight,
NAME.0.bias, NAME.2.weight, NAME.2.bias. Arithmetic operators have no such file; their output is s."""

Embedded = str | Iterable[str] | Tensor | Gaussian
"""A sentence or several, an embedding (D,) or several (n, D), or what `encode` gives."""


class Encoder(GaussianEncoder):
    """An encoder with methods that make an embedding from one or two sentences, and a sentence from an embedding.

    An input is a sentence, a list of sentences, an embedding, or what another of these methods returned, so operators can be
    chained: `compress(fuse(a, b))`. One sentence, or an embedding of (D,), gives one result; n of them give n.
    """

    def read_modules(self, path: Path) -> None:
        """Read the operators, and the decoder if there is one.

        Raises:
            UserError: they are not those of this version.
        """
        objective: dict[str, Any] = self.notes["trial"]["objective"]
        with torch.random.fork_rng(devices=[]):
            operators = SentenceOperators(self.dim, objective["operators"], None)
            tensors = load_file(path / OBJECTIVE_WEIGHTS)
            if (vocabulary := tensors.get("decoder.vocabulary")) is not None:
                layers, ends = objective["decoder_layers"], self.sentence_ends
                operators.decoder = VectorDecoder(self.backbone, layers, self.dim, vocabulary, *ends)
        if tensors.keys() != operators.state_dict().keys():
            raise UserError(
                f"{path / OBJECTIVE_WEIGHTS}: these are not the operators of this version; use the version of this program that "
                "wrote them, or train the model again"
            )
        operators.load_state_dict(tensors)
        # A list keeps them out of the encoder's modules, and so out of its weights.
        self._trained = [operators.eval()]

    @property
    def trained_modules(self) -> SentenceOperators:
        """The operators and the decoder."""
        return self._trained[0]

    operations: ClassVar[Mapping[str, int]] = MappingProxyType({"fuse": 2, "difference": 2, "compress": 1})

    @property
    def writes(self) -> bool:
        """Whether the model has a decoder."""
        return self.trained_modules.decoder is not None

    def write(self, vectors: Tensor) -> list[str]:
        """`decode` of (n, D) embeddings."""
        return list(self.decode(vectors))

    def write_weights(self, folder: Path) -> None:
        """Add the weights of the operators to an exported model; arithmetic operators have none."""
        if weights := self.trained_modules.operators.networks.state_dict():
            write_tensors(weights, folder / OPERATORS)

    def fuse(self, a: Embedded, b: Embedded) -> Tensor:
        """The embedding of a sentence that says what a and b say, (D,) or (n, D).

        Raises:
            UserError: the inputs differ in number.
        """
        return self._operate("fusion", a, b)

    def difference(self, a: Embedded, b: Embedded) -> Tensor:
        """The embedding of what a says and b does not, (D,) or (n, D); meant for a b that a contains. Errors as in `fuse`."""
        return self._operate("difference", a, b)

    def compress(self, a: Embedded) -> Tensor:
        """The embedding of a shorter sentence with the main point of a, (D,) or (n, D). Errors as in `fuse`."""
        return self._operate("compression", a)

    @overload
    def decode(self, z: str) -> str: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def decode(self, z: Tensor) -> str | list[str]: ...

    @overload
    def decode(self, z: Iterable[str] | Gaussian) -> list[str]: ...

    def decode(self, z: Embedded) -> str | list[str]:
        """The sentence that the decoder writes for an embedding; for n embeddings, n sentences.

        Raises:
            UserError: the model has no decoder.
        """
        vectors, single = self._vectors(z)
        texts = self.text_of(self.write_ids(vectors))
        return texts[0] if single else texts

    def write_ids(self, vectors: Tensor) -> list[list[int]]:
        """The token ids of the sentences that the decoder writes for (n, D) embeddings, without start and end; as `decode`."""
        decoder = self.trained_modules.decoder
        if decoder is None:
            raise UserError("this model has no decoder: it was trained with objective.generation_weight 0")
        # The start is not written, and the end takes no position.
        longest = min(self.params.max_length - 2, decoder.positions.num_embeddings - 1)
        return decoder.write(vectors, longest) if len(vectors) else []

    @torch.inference_mode()
    def _operate(self, operation: Operation, a: Embedded, b: Embedded | None = None) -> Tensor:
        modules = self.trained_modules
        first, single = self._vectors(a)
        second = None
        if b is not None:
            second, other_single = self._vectors(b)
            if len(first) != len(second):
                raise UserError(f"{len(first)} sentences with {len(second)}: each goes with the one at the same position")
            single = single and other_single
        output = modules.operators(operation, first, second)
        return output[0] if single else output

    def _vectors(self, given: Embedded) -> tuple[Tensor, bool]:
        """(n, D) on the CPU, and whether one sentence or embedding was given."""
        if isinstance(given, Tensor):
            return (given[None] if given.ndim == 1 else given).cpu(), given.ndim == 1
        if isinstance(given, Gaussian):
            return given.mean.cpu(), False
        single = isinstance(given, str)
        return self.encode([given] if isinstance(given, str) else given).mean, single
