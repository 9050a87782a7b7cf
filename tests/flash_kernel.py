# pyright: reportUnknownMemberType=false
"""FlashAttention's function for sentences end to end, by plain torch: the one part of transformers' path that needs a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import modeling_flash_attention_utils as theirs


class Kernel:
    """Stands in for the package flash-attn from `install` on; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Below transformers' own code, which finds out what the function takes."""
        functions = (None, self.flash_attn_varlen_func, None, theirs._pad_input, theirs._unpad_input)
        monkeypatch.setattr(theirs, "_lazy_imports", lambda *_, **__: functions)
        # It is loaded at the first call, and after the test again.
        monkeypatch.setattr(theirs, "_loaded_implementation", None)

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> Tensor:
        """(T, heads, d) of each: attention within each sentence, to `window_size` tokens before and after (-1: all)."""
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert not causal
        self.calls += 1
        starts = cu_seqlens_q.tolist()
        assert cu_seqlens_k.tolist() == starts and starts[0] == 0 and starts[-1] == len(q)
        contexts: list[Tensor] = []
        for begin, end in pairwise(starts):
            assert 0 <= end - begin <= min(max_seqlen_q, max_seqlen_k)
            scores = torch.einsum("ihd,jhd->hij", q[begin:end], k[begin:end]) * (softmax_scale or q.shape[-1] ** -0.5)
            away = torch.arange(end - begin)[None] - torch.arange(end - begin)[:, None]
            before, after = (size if size >= 0 else end for size in window_size)
            scores = scores.masked_fill((away < -before) | (away > after), float("-inf"))
            contexts.append(torch.einsum("hij,jhd->ihd", F.dropout(scores.softmax(-1), dropout_p), v[begin:end]))
        return torch.cat(contexts)
