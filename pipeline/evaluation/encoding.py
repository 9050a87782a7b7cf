"""Encodes the sentences of token stores: in a process group, each worker a share, or in this process alone.

Shapes: S sentences in a store, D dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.data.token_store import TokenStore, open_store
from pipeline.distributed import collectives
from pipeline.distributed.precision import has_bf16
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.encoder import GaussianEncoder

ProjectTokens = Callable[[Tensor], Tensor]
"""Makes the token vectors of sentences (`GaussianEncoder.encode_rows`)."""


class Encode(Protocol):
    """Encodes the sentences of token stores; see `encode_here`."""

    def __call__(
        self, model: Path, stores: Sequence[Path], /, *, bf16: bool = False, project: ProjectTokens | None = None
    ) -> Sequence[Gaussian]:
        """The Gaussians of all sentences of each store, by the model in a folder."""
        ...


# Sentences that a thread encodes without looking up: an interrupted process ends when its threads have encoded theirs.
_SHARE = 2048


def encode_share(
    encoder: GaussianEncoder,
    store: TokenStore,
    share: int,
    shares: int,
    *,
    bf16: bool = False,
    project: ProjectTokens | None = None,
) -> Gaussian:
    """Encode every `shares`-th sentence of the store in order of length, starting with sentence number `share`.

    Returns:
        Gaussian of (⌈(S − share) / shares⌉, D), float32, in order of length, on the encoder's device.
    """
    rows = np.argsort(store.lengths, kind="stable")[share::shares]
    return encoder.encode_rows(store, rows, bf16=bf16, project=project)


def reassemble(shares: list[Gaussian], store: TokenStore) -> Gaussian:
    """Join the shares of `encode_share` in the order of the store: Gaussian of (S, D)."""
    order = np.argsort(store.lengths, kind="stable")
    first = shares[0]
    mean = first.mean.new_empty((len(store), first.mean.shape[-1]))
    log_var = torch.empty_like(mean)
    for k, part in enumerate(shares):
        rows = torch.from_numpy(order[k :: len(shares)]).to(mean.device)
        mean[rows], log_var[rows] = part.mean.to(mean.device), part.log_var.to(mean.device)
    tokens = [part.tokens for part in shares if part.tokens is not None]
    if not tokens:
        return Gaussian(mean, log_var)
    inverse = np.argsort(np.concatenate([order[k :: len(shares)] for k in range(len(shares))]))
    return Gaussian(mean, log_var, tokens=TokenVectors.cat(tokens)[torch.from_numpy(inverse)])


def encode_all(encoder: GaussianEncoder, store: TokenStore, *, bf16: bool = False) -> Gaussian:
    """Encode every sentence of the store once, divided among the workers: Gaussian of (S, D) on every worker."""
    workers = collectives.world_size()
    own_share = encode_share(encoder, store, collectives.rank(), workers, bf16=bf16)
    # Encoding takes minutes, and some hosts may be slower than others.
    collectives.barrier()
    with torch.no_grad():
        everyone = collectives.gather_rows(own_share.stacked(), len(store))
    ends = np.cumsum([0, *collectives.shard_sizes(len(store), workers)])
    parts = [everyone[a:b] for a, b in itertools.pairwise(ends)]
    return reassemble([Gaussian(p[:, 0], p[:, 1]) for p in parts], store)


def encode_here(
    model: Path, stores: Sequence[Path], *, gpu: bool = True, bf16: bool = False, project: ProjectTokens | None = None
) -> list[Gaussian]:
    """Encode every sentence of each token store in this process, in float32.

    Args:
        gpu: whether to use a GPU if there is one.
        bf16: use bf16 autocast if the device has instructions for it, which is twice as fast.
        project: as in `GaussianEncoder.encode_rows`.

    Returns:
        for each store a Gaussian of (S, D) on the CPU.
    """
    opened = [open_store(store) for store in stores]
    device = torch.device("cuda" if gpu and torch.cuda.is_available() else "cpu")
    encoder, bf16 = GaussianEncoder.from_pretrained(model).to(device), bf16 and has_bf16(device)
    if device.type == "cuda":
        with torch.inference_mode():
            shares = (encode_share(encoder, store, 0, 1, bf16=bf16, project=project) for store in opened)
            return [reassemble([share], store).to("cpu") for share, store in zip(shares, opened, strict=True)]
    return [_encode_by_threads(encoder, store, torch.get_num_threads(), bf16, project) for store in opened]


def _encode_by_threads(
    encoder: GaussianEncoder, store: TokenStore, threads: int, bf16: bool, project: ProjectTokens | None
) -> Gaussian:
    # A share for each core takes less time than all cores at each matrix product.
    shares = max(threads, math.ceil(len(store) / _SHARE))

    def encode(share: int) -> Gaussian:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return encode_share(encoder, store, share, shares, bf16=bf16, project=project)

    try:
        with ThreadPoolExecutor(threads) as pool:
            return reassemble(list(pool.map(encode, range(shares))), store)
    finally:
        # What a thread sets also holds for the others.
        torch.set_num_threads(threads)
