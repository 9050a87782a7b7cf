"""Operators on sentence embeddings (InterSent, 2023, section 3): fusion, difference, compression.

Reconstruction is the identity: a sentence and its paraphrase have the same embedding. Shapes: n rows, D dimensions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data.schema import OPERATIONS, TWO_INPUTS, Operation
from pipeline.distributed.transfer import to_device
from pipeline.families.operations.vector_decoder import VectorDecoder

OperatorKind = Literal["mlp", "arithmetic"]


def arithmetic(operation: Operation, a: Tensor, b: Tensor | None) -> Tensor:
    """(n, D) the sum of a fusion's inputs, the difference of a difference's; for the other operations the input itself."""
    if b is None:
        return a
    return a + b if operation == "fusion" else a - b


class Operators(nn.Module):
    """One operator for each operation.

    Args:
        dim: D.
        kind: arithmetic: the function of that name; no parameters. mlp: adds a network to it, two layers with a ReLU between
            them, over the inputs side by side; the inner width is D, for compression D / 2 (paper, which has the network alone).
            The second layer starts at zero, so training starts from arithmetic.
    """

    def __init__(self, dim: int, kind: OperatorKind) -> None:
        super().__init__()
        self.kind: OperatorKind = kind
        self.networks = nn.ModuleDict()
        if kind == "mlp":
            self.networks["fusion"] = _mlp(2 * dim, dim, dim)
            self.networks["difference"] = _mlp(2 * dim, dim, dim)
            self.networks["compression"] = _mlp(dim, dim // 2, dim)

    def forward(self, operation: Operation, a: Tensor, b: Tensor | None = None) -> Tensor:
        """(n, D) embeddings of the results.

        Args:
            a: (n, D) first inputs; of a difference, the sentence from which something is taken.
            b: (n, D) second inputs, for fusion and difference only.
        """
        assert (b is not None) == (operation in TWO_INPUTS)
        output = arithmetic(operation, a, b)
        if operation not in self.networks:
            return output
        return output + self.networks[operation](a if b is None else torch.cat((a, b), -1))


class SentenceOperators(nn.Module):
    """What a model with sentence operators has besides its encoder.

    Args:
        decoder: writes a sentence from an embedding; None if none was trained.
    """

    def __init__(self, dim: int, kind: OperatorKind, decoder: VectorDecoder | None) -> None:
        super().__init__()
        self.operators = Operators(dim, kind)
        self.decoder = decoder

    def by_rows(self, operation: NDArray[np.int8], a: Tensor, b: Tensor) -> Tensor:
        """(n, D) outputs of rows with different operations.

        Args:
            operation: (n,) positions in `OPERATIONS`.
            a: (n, D) first inputs.
            b: (n, D) second inputs; of operations with one input, anything finite.
        """
        output = torch.zeros_like(a)
        for code in np.unique(operation).tolist():
            rows = to_device(np.flatnonzero(operation == code), a.device)
            name = OPERATIONS[code]
            output = output.index_copy(0, rows, self.operators(name, a[rows], b[rows] if name in TWO_INPUTS else None))
        return output


def _mlp(inputs: int, inner: int, outputs: int) -> nn.Sequential:
    last = nn.Linear(inner, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, inner), nn.ReLU(), last)
