"""How the benchmarks measure: variants in turn in one process for time, one variant in a process of its own for memory."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Set by `python -m bench --quick`, also for the processes that benchmarks start.
QUICK = "GAUSSCSE_BENCH_QUICK"


def is_quick() -> bool:
    """Whether this is a run at quick size: small made-up data with gaps, figures that mean nothing."""
    return QUICK in os.environ


def use_threads() -> None:
    """Let torch use two threads, with which all figures are measured; one in a quick run, which shares the machine."""
    # Here, because the processes that `bench.data` starts should not inherit torch's memory.
    import torch

    torch.set_num_threads(1 if is_quick() else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    `ratio` says how many times better `ours` is than `baseline`, whichever way the unit counts; both are None where there is
    nothing to compare with. `peak_mb` is in 10⁶ bytes.
    """

    name: str
    ours: float
    baseline: float | None
    ratio: float | None
    unit: str
    peak_mb: float
    baseline_peak_mb: float | None = None
    note: str = ""


def in_turn(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant, `repeats` times each, A B C A B C …, after one round not counted.

    In turn, because a shared machine is now faster and now slower: what is compared should have met the same weather.
    """
    for variant in variants.values():
        variant()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, str]:
    """Median over the rounds of their seconds by ours, and the range it was in, as text."""
    rounds = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(rounds), f"ratio {min(rounds):.3g} to {max(rounds):.3g} over {len(rounds)} rounds"


def alone(function: str, **arguments: Any) -> dict[str, Any]:
    """Measure in a process of its own what `module:function` prepares and returns: a callable without arguments.

    A quick run measures in this process, which saves the imports; its figures mean nothing anyway.

    Returns:
        grown_mb, memory it needs on top of what was there before, and peak_mb, of the whole process (10⁶ bytes); seconds of a
        second run.
    """
    if is_quick():
        return _measured(function, arguments)
    command = [sys.executable, "-m", "bench.measure", function, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_mb(function: str, **arguments: Any) -> float:
    """Memory that what `module:function` returns needs on top of what was there before, 10⁶ bytes."""
    return float(alone(function, **arguments)["grown_mb"])


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _measured(function: str, arguments: dict[str, Any]) -> dict[str, float]:
    module, name = function.split(":")
    work = getattr(importlib.import_module(module), name)(**arguments)
    before, preparing = _resident("VmRSS"), _resident("VmHWM")
    # Forget the peak of the preparation. Where the kernel does not allow it, the peak of the whole process stands.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    work()
    peak = _resident("VmHWM")
    # The first time pays for thread pools, kernels and caches.
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "grown_mb": (peak - before) / 1e6, "peak_mb": max(peak, preparing) / 1e6}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], json.loads(sys.argv[2]))))
