"""Vectors of the tokens of sentences, for a relation head that reads them (`pipeline.models.token_head`).

Shapes: n sentences of at most L tokens, T tokens in all, d dimensions of a token's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SCALE = 127
"""The int8 number that represents 1."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The token vectors of n sentences. Parts of a batch share its table, so taking a part copies no vector.

    Attributes:
        table: (T, d), int8; in training floats.
        start: (n,) int64, the row of a sentence's first token.
        length: (n,) int64, the tokens of a sentence, at least 1.
        longest: as many or more tokens than any sentence has, if that is known without waiting for the device.
    """

    table: Tensor
    start: Tensor
    length: Tensor
    longest: int | None = None

    def __getitem__(self, index: Any) -> TokenVectors:
        return TokenVectors(self.table, self.start[index], self.length[index], self.longest)

    def to(self, device: torch.device) -> TokenVectors:
        """The vectors on a device."""
        return TokenVectors(self.table.to(device), self.start.to(device), self.length.to(device), self.longest)

    def padded(self) -> tuple[Tensor, Tensor]:
        """(n, L, d) floats in [−1, 1], and (n, L) True on tokens. What is on padding has no meaning."""
        longest = int(self.length.max()) if self.longest is None else self.longest
        steps = torch.arange(longest, device=self.length.device)
        mask = steps < self.length[:, None]
        rows = (self.start[:, None] + steps).where(mask, 0)
        return self.table[rows] / SCALE, mask

    def as_numbers(self, longest: int) -> Tensor:
        """(n, 1 + longest·d): the length of each sentence, and its vectors with 0 on padding, for a loss (`of_numbers`)."""
        vectors, mask = replace(self, longest=longest).padded()
        return torch.cat((self.length[:, None], (vectors * mask[..., None]).flatten(1)), 1)

    @staticmethod
    def of_numbers(numbers: Tensor, dim: int, longest: int | None) -> TokenVectors:
        """The vectors from `as_numbers`; a sentence that is only zeros has one token.

        Args:
            dim: d.
            longest: no sentence has more tokens; by default as many as there is room for.
        """
        steps = (numbers.shape[1] - 1) // dim
        steps = steps if longest is None else min(steps, longest)
        start = steps * torch.arange(len(numbers), device=numbers.device)
        table = numbers[:, 1 : 1 + steps * dim].reshape(-1, dim) * SCALE
        return TokenVectors(table, start, numbers[:, 0].long().clamp_min(1), steps)

    def packed(self) -> TokenVectors:
        """The same vectors in a table that has no others, in the order of the sentences."""
        first = self.length.cumsum(0) - self.length
        rows = torch.arange(int(self.length.sum()), device=first.device) + (self.start - first).repeat_interleave(self.length)
        return TokenVectors(self.table[rows], first, self.length.clone())

    @staticmethod
    def of_packed(table: Tensor, length: Tensor) -> TokenVectors:
        """The vectors of n sentences that follow each other in a table."""
        return TokenVectors(table, length.cumsum(0) - length, length)

    @staticmethod
    def cat(parts: Sequence[TokenVectors]) -> TokenVectors:
        """Concatenation of batches."""
        ends = torch.tensor([len(part.table) for part in parts]).cumsum(0).tolist()
        starts = torch.cat([part.start + shift for part, shift in zip(parts, [0, *ends], strict=False)])
        longest = [part.longest for part in parts if part.longest is not None]
        table, length = torch.cat([part.table for part in parts]), torch.cat([part.length for part in parts])
        return TokenVectors(table, starts, length, max(longest) if len(longest) == len(parts) else None)
