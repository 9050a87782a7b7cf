"""Last hidden states by transformers' own attention for sentences of any length, laid end to end.

For backbones with rotary positions, such as ModernBERT. It is FlashAttention, of the package flash-attn, which needs a GPU and
bf16. Elsewhere these backbones get padded sentences.

Shapes: T tokens including padding, H hidden size.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.import_utils import is_flash_attn_2_available

from pipeline.models.packing import TokenBlocks

# Not versions 3 and 4: transformers leaves out the dropout that they lack.
_ATTENTION = "flash_attention_2"
_ROTARY = frozenset({"modernbert", "eurobert", "gte", "nomic_bert", "jina_embeddings_v3"})


def takes(backbone: nn.Module, device: torch.device) -> bool:
    """True if the backbone can compute this way on the device, in the precision of the autocast around the call."""
    kind: Any = backbone.config.model_type  # type: ignore[union-attr]
    return device.type == "cuda" and torch.is_autocast_enabled("cuda") and kind in _ROTARY and is_flash_attn_2_available()


def states(backbone: nn.Module, batch: TokenBlocks) -> Tensor:
    """(T, H) last hidden states, block after block; those of padding say nothing. Dropout in training mode.

    The padding after a sentence counts as a sentence, which may be empty. So the host need not wait for the lengths.
    """
    lengths = [torch.stack((own := mask.sum(1), mask.shape[1] - own), 1).flatten() for _, mask in batch.rectangles()]
    starts = F.pad(torch.cat(lengths).cumsum(0, dtype=torch.int32), (1, 0))
    longest = max(length for _, length in batch.shapes)
    where = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}
    config: Any = backbone.config
    usual, config._attn_implementation = config._attn_implementation, _ATTENTION
    try:
        return backbone(batch.ids[None], position_ids=batch.positions()[None], **where).last_hidden_state[0]
    finally:
        config._attn_implementation = usual
