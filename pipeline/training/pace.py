"""Progress metrics of a run: loss, score, throughput, MFU.

Model FLOP utilisation (MFU) is the share of the peak that the model itself needs: 6 operations for each weight and token (Kaplan
et al. 2020, "Scaling laws for neural language models", section 2.1), divided by the time and by the device's peak (Chowdhery et
al. 2022, "PaLM", appendix B). Weights are those of the backbone without its embeddings, tokens those of the sentences without
padding. The products of attention are left out: with L tokens and hidden size H they add about L / (6·H). The second forward pass
of gradient caching is work of the method and not counted.
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from pipeline.distributed import collectives
from pipeline.distributed.precision import why

# Peak of dense matrix products in TFLOP/s, from the makers' data sheets: (bf16 with float32 sums, or None without bf16; float32).
# The names are those that torch gives; the longest that begins a device's name counts.
_PEAKS: dict[str, tuple[float | None, float]] = {
    "NVIDIA A10": (125.0, 31.2),
    "NVIDIA A30": (165.0, 10.3),
    "NVIDIA A100": (312.0, 19.5),
    "NVIDIA H100 80GB HBM3": (989.4, 66.9),
    "NVIDIA H100 PCIe": (756.0, 51.2),
    "NVIDIA H200": (989.4, 66.9),
    "NVIDIA L4": (121.0, 30.3),
    "NVIDIA L40S": (362.0, 91.6),
    "NVIDIA GeForce RTX 3090": (71.0, 35.6),
    "NVIDIA GeForce RTX 4090": (165.2, 82.6),
    "Tesla T4": (None, 8.1),
    "Tesla V100": (None, 15.7),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed and memory of the first worker; None where it is not known."""

    rows_per_second: float | None
    tflops: float | None = None
    """TFLOP/s of the model, without what gradient caching and padding add."""
    mfu: float | None = None
    """`tflops` in percent of the device's peak; None if the peak is not in the table."""
    peak_memory_mb: float | None = None
    """10⁶ bytes: tensors on the GPU, or on a CPU the whole process."""
    gathered_mb: float | None = None
    """10⁶ bytes that a step's gathers receive: representations and their gradients, not DDP's gradients. None for one worker."""
    device: str | None = None
    precision: str | None = None
    precision_why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Speed):
    """A progress report. The loss is the mean over the steps since the last report; `score_name` and `row_kind` are the
    objective's."""

    step: int
    total_steps: int
    loss: float | None
    learning_rate: float
    score_name: str
    score: float | None
    best_score: float | None
    row_kind: str
    seconds_left: float | None
    system: Mapping[str, float] | None = None
    """Load of the workers' machines, by MLflow's names of system metrics."""
    machines: Sequence[str] = ()
    """The cluster's id of the machine of each worker; empty if all are on this machine."""


class Pace:
    """Counts the steps of one attempt.

    Args:
        towers: the backbones that the sentences go through.
        asked: `train.precision`.
        bf16: whether the steps compute in bf16.
    """

    def __init__(self, towers: Iterable[nn.Module], device: torch.device, asked: str, *, bf16: bool) -> None:
        self._weights = sum(map(weights_of, towers))
        self._device, self._name = device, device_name(device)
        self._peak = peak_tflops(self._name, bf16=bf16)
        self._still = Speed(
            rows_per_second=None,
            device=self._name,
            precision="bf16" if bf16 else "fp32",
            precision_why=why(asked, device, bf16=bf16),
        )
        if device.type == "cuda":
            # A worker that Tune keeps trains one trial after another.
            torch.cuda.reset_peak_memory_stats(device)
        self._began = time.monotonic()
        self._rows = self._tokens = self._steps = self._gathered = 0
        self._aside = 0.0
        self._most_memory = 0

    def begin(self) -> None:
        """The first step begins now."""
        self._began = time.monotonic()

    def count(self, rows: int, tokens: int, gathered: int) -> None:
        """A step of so many rows (of all workers), tokens and gathered bytes (of this worker)."""
        self._rows, self._tokens, self._gathered = self._rows + rows, self._tokens + tokens, self._gathered + gathered
        self._steps += 1

    def set_aside(self, seconds: float) -> None:
        """Leave out seconds that were spent on something else than steps."""
        self._aside += seconds
        if self._device.type == "cuda":
            # Scoring takes what memory is free.
            torch.cuda.reset_peak_memory_stats(self._device)

    def now(self) -> Speed:
        """The speed so far. The device must have finished the steps."""
        self._most_memory = max(self._most_memory, peak_memory(self._device))
        still = replace(self._still, peak_memory_mb=self._most_memory / 1e6)
        if not self._steps:
            return still
        seconds = max(time.monotonic() - self._began - self._aside, 1e-9)
        tflops = 6 * self._weights * self._tokens / seconds / 1e12
        return replace(
            still,
            rows_per_second=self._rows / seconds,
            tflops=tflops,
            mfu=None if self._peak is None else 100 * tflops / self._peak,
            gathered_mb=self._gathered / self._steps / 1e6 if collectives.world_size() > 1 else None,
        )


def weights_of(backbone: nn.Module) -> int:
    """Number of weights without those of embeddings, which are looked up and not multiplied."""
    looked_up = sum(module.weight.numel() for module in backbone.modules() if isinstance(module, nn.Embedding))
    return sum(parameter.numel() for parameter in backbone.parameters()) - looked_up


def device_name(device: torch.device) -> str:
    """`cpu`, or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_tflops(name: str, *, bf16: bool) -> float | None:
    """The peak of a device by its name; None for a CPU and for a GPU that is not in the table."""
    # An A10G and an A100 are not an A10. A laptop's GPU, a part of a GPU (MIG) and an H200 NVL are slower than their names say.
    known = [key for key in _PEAKS if name == key or name.startswith((f"{key} ", f"{key}-"))]
    if not known or any(word in name for word in ("Laptop", "MIG", "NVL")):
        return None
    return _PEAKS[max(known, key=len)][0 if bf16 else 1]


def peak_memory(device: torch.device) -> int:
    """Most bytes so far: of tensors on this GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
