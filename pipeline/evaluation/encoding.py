"""Encodes the sentences of token stores: in a process group, each worker a share, or in this process alone.

Shapes: S sentences in a store, D dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.token_store import TokenStore, open_store
from pipeline.distributed import collectives
from pipeline.distributed.precision import has_bf16
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.encoder import GaussianEncoder

T = TypeVar("T")

ProjectTokens = Callable[[Tensor], Tensor]
"""Makes the token vectors of sentences (`GaussianEncoder.encode_rows`)."""


class Encode(Protocol):
    """Encodes the sentences of token stores; see `encode_here`."""

    def __call__(
        self,
        model: Path,
        stores: Sequence[Path],
        /,
        *,
        bf16: bool = False,
        project: ProjectTokens | None = None,
        table: IO[bytes] | None = None,
    ) -> Sequence[Gaussian]:
        """The Gaussians of all sentences of each store, by the model in a folder."""
        ...


class Compute(Protocol):
    """Computes something from a model and a token store: in this process, or on a node of the cluster."""

    def __call__(self, what: Callable[[Path, Path, Encode], T], model: Path, store: Path, /) -> T:
        """The answer of `what`, which gets the two folders where it runs, and what encodes there."""
        ...


# Sentences that a thread encodes without looking up: an interrupted process ends when its threads have encoded theirs.
_SHARE, _GPU_SHARE = 2048, 65_536


def share_of(store: TokenStore, share: int, shares: int) -> NDArray[np.intp]:
    """(⌈(S − share) / shares⌉,) every `shares`-th sentence of the store in order of length, starting with number `share`."""
    return np.argsort(store.lengths, kind="stable")[share::shares]


def joined(parts: Iterable[tuple[int, Gaussian]], shares: int, store: TokenStore, table: IO[bytes] | None = None) -> Gaussian:
    """Join the Gaussians of the shares (`share_of`), in the order of the store.

    Args:
        parts: each share with its number, in any order.
        shares: how many there are.
        table: an empty file. The token vectors are written there, one share after the other, and mapped; nothing else is kept.

    Returns:
        Gaussian of (S, D); with `table` of (S, 0), on the CPU.
    """
    order, found = np.argsort(store.lengths, kind="stable"), None
    start, length = torch.zeros((2, len(store)), dtype=torch.int64)
    written, width, tables = 0, 0, list[Tensor]()
    for share, part in parts:
        rows = torch.from_numpy(order[share::shares])
        if found is None:
            mean = part.mean.new_empty((len(store), 0 if table else part.mean.shape[-1]))
            found = Gaussian(mean, torch.empty_like(mean))
        if table is None:
            found.mean[rows], found.log_var[rows] = part.mean.to(found.mean.device), part.log_var.to(found.mean.device)
        if part.tokens is not None:
            start[rows], length[rows] = part.tokens.start.cpu() + written, part.tokens.length.cpu()
            written, width = written + len(part.tokens.table), part.tokens.table.shape[1]
            if table is not None:
                table.write(part.tokens.table.numpy().data)
            else:
                tables.append(part.tokens.table)
    assert found is not None
    if not written:
        return found
    if table is not None:
        table.flush()
        # Shared ("r+"), since the kernel counts a mapping of one's own as memory that will be used.
        vectors = torch.from_numpy(np.memmap(table, np.int8, "r+", shape=(written, width)))
    else:
        vectors = torch.cat(tables)
    return Gaussian(found.mean, found.log_var, tokens=TokenVectors(vectors, start, length).to(vectors.device))


def encode_all(encoder: GaussianEncoder, store: TokenStore, *, bf16: bool = False) -> Gaussian:
    """Encode every sentence of the store once, divided among the workers: Gaussian of (S, D) on every worker."""
    workers = collectives.world_size()
    own_share = encoder.encode_rows(store, share_of(store, collectives.rank(), workers), bf16=bf16)
    # Encoding takes minutes, and some hosts may be slower than others.
    collectives.barrier()
    with torch.no_grad():
        everyone = collectives.gather_rows(own_share.stacked(), len(store))
    ends = np.cumsum([0, *collectives.shard_sizes(len(store), workers)])
    parts = [everyone[a:b] for a, b in itertools.pairwise(ends)]
    return joined(enumerate(Gaussian(p[:, 0], p[:, 1]) for p in parts), workers, store)


def encode_here(
    model: Path,
    stores: Sequence[Path],
    *,
    gpu: bool = True,
    bf16: bool = False,
    project: ProjectTokens | None = None,
    table: IO[bytes] | None = None,
) -> list[Gaussian]:
    """Encode every sentence of each token store in this process, in float32.

    Args:
        gpu: whether to use a GPU if there is one.
        bf16: use bf16 autocast if the device has instructions for it, which is twice as fast.
        project: as in `GaussianEncoder.encode_rows`.
        table: as in `joined`; for one store.

    Returns:
        for each store a Gaussian of (S, D) on the CPU.
    """
    opened = [open_store(store) for store in stores]
    device = torch.device("cuda" if gpu and torch.cuda.is_available() else "cpu")
    encoder, bf16 = GaussianEncoder.from_pretrained(model).to(device), bf16 and has_bf16(device)
    threads = torch.get_num_threads()
    # A share for each core takes less time than all cores at each matrix product. A GPU takes larger ones, one after the other.
    workers, size = (1, _GPU_SHARE) if device.type == "cuda" else (threads, _SHARE)

    def encoded(store: TokenStore) -> Gaussian:
        shares, order = max(workers, math.ceil(len(store) / size)), share_of(store, 0, 1)

        def encode(share: int) -> tuple[int, Gaussian]:
            torch.set_num_threads(threads // workers)
            with torch.inference_mode():
                return share, encoder.encode_rows(store, order[share::shares], bf16=bf16, project=project).to("cpu")

        with ThreadPoolExecutor(workers) as pool:
            # Only some at a time: what waits to be joined takes memory.
            groups = (range(first, min(first + 4 * workers, shares)) for first in range(0, shares, 4 * workers))
            try:
                return joined((part for group in groups for part in pool.map(encode, group)), shares, store, table)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    try:
        return [encoded(store) for store in opened]
    finally:
        # What a thread sets also holds for the others.
        torch.set_num_threads(threads)
