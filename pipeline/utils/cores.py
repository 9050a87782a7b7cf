"""Processor cores that this process may use."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_LIMITS = Path("/sys/fs/cgroup")


def cores() -> int:
    """OMP_NUM_THREADS if it is set, else `machine_cores`."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else machine_cores()


def machine_cores() -> int:
    """Cores of this machine, or those that the limits of this container allow, rounded down; at least 1."""
    counts: list[float] = [os.cpu_count() or 1]
    if sys.platform == "linux":
        counts.append(len(os.sched_getaffinity(0)))
    # Control groups, version 2 and version 1.
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError):
            quota, period = " ".join((_LIMITS / name).read_text(encoding="ascii") for name in names).split()
            if quota.isdecimal():
                counts.append(int(quota) / int(period))
    return max(1, int(min(counts)))
