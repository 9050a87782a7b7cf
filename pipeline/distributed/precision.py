"""Support for bfloat16: its products are worth using only if the processor or GPU has instructions for them."""

from __future__ import annotations

import torch

from pipeline.distributed import collectives


def has_bf16(device: torch.device) -> bool:
    """True if the device has instructions for bfloat16 products.

    Otherwise torch emulates them element by element: on a core with only AVX2, 9 GFLOP/s instead of 75 in float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    # x86 with AVX-512 BF16 or AMX, and Arm.
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def all_have_bf16(device: torch.device) -> bool:
    """True if the devices of all workers have them; the same answer on every worker."""
    mine = torch.tensor(float(has_bf16(device)), device=device)
    return int(collectives.all_sum(mine).item()) == collectives.world_size()


def why(asked: str, device: torch.device, *, bf16: bool) -> str:
    """The reason why a run computes in bf16 or in float32, in words.

    Args:
        asked: `train.precision`.
        bf16: what the run computes in.
    """
    if asked == ("bf16" if bf16 else "fp32"):
        return f"train.precision: {asked}"
    whose = "another worker's device" if has_bf16(device) else "this device"
    return f"train.precision: {asked}, but {whose} has no bf16 instructions"


def bf16_here() -> bool:
    """True if a worker on this machine can compute in bf16."""
    return has_bf16(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
