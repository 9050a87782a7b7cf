"""Sentences of a token store → tensors for the encoder, with little or no padding.

Shapes: m sentences, T tokens of all of them including padding, L tokens of one sentence.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch leaves some of its functions untyped)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.token_store import TokenStore
from pipeline.distributed.transfer import to_device

CPU_TOKENS = 4096
"""Padded tokens in one forward pass on a CPU (keeps the activations of the packaged encoder under 100 MB), and the fewest."""
# More do not make a GPU faster.
_GPU_TOKENS = 1 << 18
# Of a GPU's free memory; other processes may want some, and a backbone may need more than is counted here.
_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """m sentences end to end, grouped into blocks by padded length.

    Attributes:
        ids: (T,) int64 token ids.
        mask: (T,) True on tokens, False on padding; None if nothing is padded.
        shapes: (sentences, padded length) of each block; T is the sum of their products, m the sum of the sentences.
    """

    ids: Tensor
    mask: Tensor | None
    shapes: tuple[tuple[int, int], ...]

    @property
    def sizes(self) -> list[int]:
        """Tokens in each block, including padding."""
        return [count * length for count, length in self.shapes]

    @property
    def masks(self) -> list[Tensor | None]:
        """The mask (count, L) of each block; None for each if nothing is padded."""
        return [None] * len(self.shapes) if self.mask is None else [mask for _, mask in self.rectangles()]

    def positions(self) -> Tensor:
        """(T,) position of each token in its sentence, from 0."""
        device = self.ids.device
        return torch.cat([torch.arange(length, device=device).repeat(count) for count, length in self.shapes])

    def first_tokens(self) -> Tensor:
        """(m,) index in `ids` of each sentence's first token."""
        device, ends = self.ids.device, np.cumsum(self.sizes).tolist()
        # Computed on the device: nothing has to be copied there.
        blocks = zip(ends, self.shapes, strict=True)
        return torch.cat([torch.arange(end - count * length, end, length, device=device) for end, (count, length) in blocks])

    def rectangles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """ids (count, L) and mask (count, L) of each block."""
        mask = torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask
        for shape, ids, present in zip(self.shapes, self.ids.split(self.sizes), mask.split(self.sizes), strict=True):
            yield ids.view(shape), present.view(shape)

    def by_block(self, states: Tensor) -> list[Tensor]:
        """(T, H), with spare rows or without → (count, L, H) of each block."""
        blocks = states[: len(self.ids)].split(self.sizes)
        return [part.view(*shape, -1) for part, shape in zip(blocks, self.shapes, strict=True)]


def by_length(store: TokenStore, rows: NDArray[np.integer], at_most: int | None) -> list[NDArray[np.int64]]:
    """Positions in `rows`, shortest sentence first, in parts of nearly equal size.

    Args:
        rows: (m,) sentences of the store.
        at_most: the most sentences in a part; None for a single part.
    """
    order = np.argsort(store.lengths_of(rows), kind="stable")
    return np.array_split(order, 1 if at_most is None else max(1, -(-len(order) // at_most)))


def lay_out(store: TokenStore, rows: NDArray[np.integer], blocks: int, device: torch.device | str) -> TokenBlocks:
    """Put sentences into at most `blocks` blocks with the least padding.

    Args:
        rows: (m,) sentences of the store, shortest first, m > 0.

    Raises:
        IndexError: a row is not in the store.
    """
    lengths = store.lengths_of(rows)
    widths = padded_lengths(lengths, blocks)
    ids, mask = store.lay_out(rows, widths)
    length, count = np.unique(widths, return_counts=True)
    return TokenBlocks(
        ids=to_device(ids, device),
        mask=None if mask.all() else to_device(mask, device),
        shapes=tuple(zip(count.tolist(), length.tolist(), strict=True)),
    )


def padded_lengths(lengths: NDArray[np.integer], blocks: int) -> NDArray[np.integer]:
    """(m,) padded lengths of m sentences: at most `blocks` different lengths, with the smallest total.

    Args:
        lengths: (m,) ascending.
        blocks: the most different padded lengths.
    """
    values, counts = np.unique(lengths, return_counts=True)
    if len(values) <= blocks:
        return lengths
    # best[b]: smallest total of the values up to the b-th with the blocks used so far. cost[a, b]: total of one block of a to b.
    before = np.cumsum(counts) - counts
    cost = values[None, :] * (before + counts - before[:, None]).astype(np.float64)
    cost[np.tri(len(values), k=-1, dtype=bool)] = np.inf
    best, firsts = cost[0], list[NDArray[np.int64]]()
    for _ in range(blocks - 1):
        total = np.concatenate(([np.inf], best[:-1]))[:, None] + cost
        firsts.append(total.argmin(0))
        best = total.min(0)
    padded, last = values.copy(), len(values) - 1
    for first in reversed(firsts):
        padded[first[last] : last + 1] = values[last]
        last = int(first[last]) - 1
    padded[: last + 1] = values[last]
    return np.repeat(padded, counts)


def tokens_at_once(device: torch.device, config: Any) -> int:
    """Padded tokens in one forward pass, on a GPU as many as fit in its free memory.

    A token needs about eight hidden vectors (input, query, key, value, context, sums) and two of the inner width at the
    same time, in float32. A smaller backbone thus takes more tokens.

    Args:
        config: of a Hugging Face backbone.
    """
    if device.type != "cuda":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    hidden: int = config.hidden_size
    inner: int = getattr(config, "intermediate_size", None) or 4 * hidden
    return min(max(int(_SHARE * free / (4 * (8 * hidden + 2 * inner))), CPU_TOKENS), _GPU_TOKENS)


def within_budget(lengths: NDArray[np.integer], order: NDArray[np.integer], budget: int) -> NDArray[np.integer]:
    """The longest run at the beginning of `order` (sorted by length, not empty) whose padded size, count × longest, stays within
    `budget` tokens; one sentence at least."""
    # The longest sentence is last: the run may grow while count × length of its last sentence fits.
    window = lengths[order[:budget]]
    return order[: max(1, int(np.searchsorted(np.arange(1, len(window) + 1) * window, budget, side="right")))]
