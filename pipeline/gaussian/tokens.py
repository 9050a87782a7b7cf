"""Vectors of the tokens of sentences, for a relation head that reads them (`pipeline.models.token_head`).

Shapes: n sentences of at most L tokens, T tokens in all, d dimensions of a token's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SCALE = 127
"""The int8 number that represents 1."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The token vectors of n sentences. Parts of a batch share its table, so taking a part copies no vector.

    Attributes:
        table: (T, d), int8.
        start: (n,) int64, the row of a sentence's first token.
        length: (n,) int64, the tokens of a sentence, at least 1.
    """

    table: Tensor
    start: Tensor
    length: Tensor

    def __getitem__(self, index: Any) -> TokenVectors:
        return TokenVectors(self.table, self.start[index], self.length[index])

    def to(self, device: torch.device) -> TokenVectors:
        """The vectors on a device."""
        return TokenVectors(self.table.to(device), self.start.to(device), self.length.to(device))

    def padded(self) -> tuple[Tensor, Tensor]:
        """(n, L, d) float32, in [−1, 1], and (n, L) True on tokens. What is on padding has no meaning."""
        steps = torch.arange(int(self.length.max()), device=self.length.device)
        mask = steps < self.length[:, None]
        rows = (self.start[:, None] + steps).where(mask, 0)
        return self.table[rows].float() / SCALE, mask

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
        return TokenVectors(torch.cat([part.table for part in parts]), starts, torch.cat([part.length for part in parts]))
