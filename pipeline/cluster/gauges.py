"""Metrics of a training run for Ray's Prometheus endpoint, and what a worker's machine is busy with.

Ray exports the gauges of all workers on each node, under `ray_` and their name. deploy/grafana/gausscse.json shows them.
"""

from __future__ import annotations

import math

import psutil
import ray
import torch
from ray.util.metrics import Gauge

from pipeline.training.trainer import Progress

GAUGES = (
    *("gausscse_step_ratio", "gausscse_loss", "gausscse_score", "gausscse_rows_per_second", "gausscse_tflops"),
    *("gausscse_mfu_percent", "gausscse_peak_memory_mb", "gausscse_gathered_mb", "gausscse_seconds_left"),
)
"""All but the first (the share of the steps that is done) are fields of `Progress`. Each has the tag `trial`."""
SYSTEM = (
    "cpu_utilization_percentage",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
    "gpu_utilization_percentage",
    "gpu_memory_usage_megabytes",
)
"""What `system_metrics` returns, by MLflow's names."""


class Gauges:
    """Sets the gauges of one trial. Without a connection to Ray, it does nothing."""

    def __init__(self, trial: str) -> None:
        connected = ray.is_initialized()
        self._gauges = {name: Gauge(name, tag_keys=("trial",)) for name in GAUGES} if connected else {}
        self._tags = {"trial": trial}

    def __call__(self, progress: Progress) -> None:
        """Set what the report knows."""
        for name, gauge in self._gauges.items():
            key = name.removeprefix("gausscse_").removesuffix("_percent")
            value = progress.step / max(progress.total_steps, 1) if key == "step_ratio" else getattr(progress, key)
            if value is not None:
                gauge.set(value, self._tags)


def system_metrics(device: torch.device) -> list[float]:
    """What this machine is busy with, in the order of `SYSTEM`; NaN where that needs a GPU, or NVML, and there is none.

    The use of the processor is the mean since the last call.
    """
    memory = psutil.virtual_memory()
    values = [psutil.cpu_percent(), memory.used / 1e6, memory.percent, math.nan, math.nan]
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        values[4] = (total - free) / 1e6
        try:
            values[3] = float(torch.cuda.utilization(device))
        except Exception:
            # NVML's package may be missing, or NVML refuses the figure (a part of a GPU, no permission) with an error of its own.
            return values
    return values
