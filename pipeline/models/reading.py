"""How a tokenizer read texts: which of them were cut, and how much of them its vocabulary lacks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_UNKNOWN = 0.15
"""A text with a larger share of unknown tokens is not one that the model can say anything about."""


class Reading(NamedTuple):
    """How the tokenizer read n texts."""

    cut: NDArray[np.bool_]
    """(n,) whether the text was longer than the model reads."""
    unknown: NDArray[np.float64]
    """(n,) share of its tokens that the vocabulary does not have."""
    tokens: NDArray[np.int64]
    """(n,) tokens that the model reads, with those before and after the text."""

    def lines(self, longest: int) -> list[str]:
        """A line for each fault that people should know of; `longest`: the tokens that the model reads."""
        numbers = {
            f"{{:,}} are longer than {longest} tokens and were cut": int(self.cut.sum()),
            "{:,} have many words or characters that the model does not know; are they in another language?": self.strange,
        }
        return [words.format(number) for words, number in numbers.items() if number]

    def of(self, rows: slice | NDArray[np.int64]) -> Reading:
        """That of some of the texts."""
        return Reading(self.cut[rows], self.unknown[rows], self.tokens[rows])

    @property
    def strange(self) -> int:
        """Texts with many unknown tokens."""
        return int((self.unknown > MOST_UNKNOWN).sum())
