"""How the benchmarks measure: for time, variants in turn in one process; for memory, each variant in its own process."""

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
# Set by `python -m bench --quick`; processes that the benchmarks start inherit it.
QUICK = "GAUSSCSE_BENCH_QUICK"


def is_quick() -> bool:
    """Whether this is a quick run: small generated data with gaps, and figures that mean nothing."""
    return QUICK in os.environ


def use_threads() -> None:
    """Let torch use two threads, as for all figures; one in a quick run, which shares the machine."""
    # Imported here, so that processes started by `bench.data` do not count torch's memory.
    import torch

    torch.set_num_threads(1 if is_quick() else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A result of a benchmark.

    `ratio` says how many times better `ours` is than `baseline`, whether more or less of the unit is better. `ratio` and
    `baseline` are None if there is nothing to compare with. `peak_mb` is in 10⁶ bytes. `ours` and `peak_mb` are None if the
    measurement failed; `note` then says why.
    """

    name: str
    ours: float | None
    baseline: float | None
    ratio: float | None
    unit: str
    peak_mb: float | None
    baseline_peak_mb: float | None = None
    note: str = ""


def in_turn(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant, run `repeats` times in turn (A B C A B C …) after a first round that is not counted.

    The speed of a shared machine changes all the time. Taking turns gives all variants the same conditions.
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
    """Median over the rounds of their seconds divided by ours, and the range as text."""
    rounds = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(rounds), f"ratio {min(rounds):.3g} to {max(rounds):.3g} over {len(rounds)} rounds"


def alone(function: str, **arguments: Any) -> dict[str, Any]:
    """Measure, in a separate process, the callable without arguments that `module:function` prepares and returns.

    A quick run measures in this process, which saves the imports; its figures mean nothing anyway.

    Returns:
        grown_mb, the memory needed on top of the memory in use before; peak_mb of the whole process (both in 10⁶ bytes); seconds
        of a second run.
    """
    if is_quick():
        return _measured(function, arguments)
    command = [sys.executable, "-m", "bench.measure", function, json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_mb(function: str, **arguments: Any) -> float:
    """The `grown_mb` that `alone` measures, in 10⁶ bytes."""
    return float(alone(function, **arguments)["grown_mb"])


def grown_mb(work: Callable[[], object]) -> float:
    """The memory that work in this process needs on top of the memory in use before, in 10⁶ bytes."""
    before = _resident("VmRSS")
    # Forget the peak of the preparation. If the kernel does not allow it, the result is the peak of the whole process.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    work()
    return (_resident("VmHWM") - before) / 1e6


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _measured(function: str, arguments: dict[str, Any]) -> dict[str, float]:
    module, name = function.split(":")
    work = getattr(importlib.import_module(module), name)(**arguments)
    preparing = _resident("VmHWM")
    grown = grown_mb(work)
    peak = _resident("VmHWM")
    # The first run also had to set up thread pools, kernels and caches.
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "grown_mb": grown, "peak_mb": max(peak, preparing) / 1e6}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], json.loads(sys.argv[2]))))
