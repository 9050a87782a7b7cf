"""Number of tokens that the encoder takes at a time outside training: as many as fit a processor's cache or a GPU's memory."""

from __future__ import annotations

from typing import Any

import torch

CPU_TOKENS = 4096
"""Padded tokens in one forward pass on a CPU (keeps the activations of the packaged encoder under 100 MB), and the fewest."""
# More do not make a GPU faster.
_GPU_TOKENS = 1 << 18
# Of a GPU's free memory; other processes may want some, and a backbone may need more than is counted here.
_SHARE = 0.25


def tokens_at_once(device: torch.device, config: Any) -> int:
    """Padded tokens in one forward pass.

    Args:
        config: of a Hugging Face backbone.
    """
    if device.type != "cuda":
        return CPU_TOKENS
    return tokens_for(torch.cuda.mem_get_info(device)[0], config)


def tokens_for(free: int, config: Any) -> int:
    """Padded tokens that fit in so many free bytes.

    A token needs about eight hidden vectors (input, query, key, value, context, sums) and two of the inner width at the
    same time, in float32. A smaller backbone thus takes more tokens.
    """
    hidden: int = config.hidden_size
    inner: int = getattr(config, "intermediate_size", None) or 4 * hidden
    return min(max(int(_SHARE * free / (4 * (8 * hidden + 2 * inner))), CPU_TOKENS), _GPU_TOKENS)
