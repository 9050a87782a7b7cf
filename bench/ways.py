"""Other ways to compute parts of a training step, which `bench.gpu` measures against our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from pipeline.distributed.transfer import to_device
from pipeline.gaussian import distribution
from pipeline.models import packed_bert
from pipeline.models.packed_attention import Heads

LONGEST = 64
"""Most tokens of a sentence, so that with as many blocks nothing is padded."""

Shapes = tuple[tuple[int, int], ...]
Pairwise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to compute a step: the most blocks of padded sentences (None: as params.yaml), and functions in place of our own."""

    blocks: int | None = None
    functions: tuple[tuple[Any, str, Any], ...] = ()
    """(module, name, function)"""


@lru_cache(maxsize=32)
def _starts(shapes: Shapes, device: torch.device) -> Tensor:
    """(m + 1,) int32, where each of m sentences begins, and the end; all layers of a step share it."""
    counts, lengths = zip(*shapes, strict=True)
    return to_device(np.cumsum(np.repeat((0, *lengths), (1, *counts)), dtype=np.int32), device)


def variable_length(nested: bool) -> Callable[..., Tensor]:
    """`attend` by one call of torch's attention for sentences of any length, without padding.

    Args:
        nested: through nested tensors, which have dropout; otherwise `varlen_attn`, which has none and needs a GPU.
    """

    def attend(
        query: Tensor, key: Tensor, value: Tensor, shapes: Shapes, masks: list[Tensor | None], heads: Heads, p: float
    ) -> Tensor:
        if any(mask is not None for mask in masks):
            raise ValueError("sentences are padded")
        asking = shapes if len(query) == len(key) else ((sum(count for count, _ in shapes), 1),)
        q, k, v = (
            rows[: sum(count * length for count, length in of)].unflatten(1, (heads.number, heads.dim))
            for rows, of in ((query, asking), (key, shapes), (value, shapes))
        )
        starts_q, starts_k = _starts(asking, query.device), _starts(shapes, key.device)
        most_q, most_k = (max(length for _, length in of) for of in (asking, shapes))
        if nested:
            # The kernels want rows without gaps.
            q, k, v = (
                torch.nested.nested_tensor_from_jagged(rows.contiguous(), starts, min_seqlen=1, max_seqlen=most).transpose(1, 2)
                for rows, starts, most in ((q, starts_q, most_q), (k, starts_k, most_k), (v, starts_k, most_k))
            )
            # Without cuDNN: its path for nested tensors is the newest. On a GPU, torch's plain path would make the host wait.
            kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
            with sdpa_kernel(kernels if query.is_cuda else [SDPBackend.MATH]):
                attended: Any = F.scaled_dot_product_attention(q, k, v, dropout_p=p, scale=heads.scaling)
            context = attended.transpose(1, 2).values()
        elif p or not query.is_cuda:
            raise ValueError("varlen_attn has no dropout and runs on a GPU only")
        else:
            # Its scale is BERT's if none is given.
            context: Any = varlen_attn(q, k, v, starts_q, starts_k, most_q, most_k)
        return F.pad(context.flatten(1), (0, 0, 0, len(query) - len(context)))

    return attend


def kl_in(dtype: torch.dtype) -> Pairwise:
    """`pairwise_kl` as plain matrix products in a precision, with torch's gradients; no entry is computed again."""

    def pairwise(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor) -> Tensor:
        given = p_mean.dtype
        p_mean, p_log_var, q_mean, q_log_var = (t.to(dtype) for t in (p_mean, p_log_var, q_mean, q_log_var))
        precision = torch.exp(-q_log_var)
        twice = (p_log_var.exp() + p_mean.square()) @ precision.T - 2 * p_mean @ (q_mean * precision).T
        twice = twice + ((q_mean.square() * precision + q_log_var).sum(1) - p_mean.shape[1]) - p_log_var.sum(1, keepdim=True)
        return (1 / (1 + (twice / 2).clamp_min(0))).to(given)

    return pairwise


NESTED, VARLEN = (
    Way(blocks=LONGEST, functions=((packed_bert, "attend", variable_length(nested=nested)),)) for nested in (True, False)
)
FLOAT32 = Way(functions=((distribution, "pairwise_kl", kl_in(torch.float32)),))


def compiled(device: torch.device) -> Way:
    """torch.compile of what follows attention in a layer, for any number of tokens. On a CPU the graphs are not compiled."""
    backend = "inductor" if device.type == "cuda" else "eager"
    feed_forward = torch.compile(packed_bert._feed_forward, dynamic=True, backend=backend)  # pyright: ignore[reportPrivateUsage]
    return Way(functions=((packed_bert, "_feed_forward", feed_forward),))
