"""Tools of the benchmarks. For time, they measure variants in turn in one process; for memory, each in its own process."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
# Set by `python -m bench --quick`; processes that the benchmarks start inherit it.
QUICK = "GAUSSCSE_BENCH_QUICK"


def is_quick() -> bool:
    """True in a quick run: small generated data with gaps, and figures that mean nothing."""
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
    baseline: float | None = None
    ratio: float | None = None
    unit: str
    peak_mb: float | None
    baseline_peak_mb: float | None = None
    note: str = ""


def in_turn(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant, run `repeats` times in turn (A B C A B C …) after a first round that is not counted.

    The speed of a shared machine changes all the time. Taking turns gives all variants the same conditions. A variant that
    returns a float has measured its seconds itself.
    """
    for variant in variants.values():
        variant()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            start = time.perf_counter()
            own = variant()
            seconds[name].append(own if isinstance(own, float) else time.perf_counter() - start)
    return seconds


def several(step: Callable[[], None], number: int) -> Callable[[], None]:
    """A function that runs a step several times."""

    def steps() -> None:
        for _ in range(number):
            step()

    return steps


def compared(
    name: str, unit: str, seconds: Iterable[list[float]], peaks: Sequence[float], *, done: float | None = None, note: str = ""
) -> Row:
    """The row of two variants, ours and the baseline.

    Args:
        seconds: those of each round, of ours and of the baseline.
        peaks: memory of ours and of the baseline, which may lack, in 10⁶ bytes.
        done: what a round does, counted in the unit, such as pairs for pairs/s; None if `seconds` has the unit itself.
    """
    ours, theirs = seconds
    factor, spread = ratio(ours, theirs)
    mine, other = (middle if done is None else done / middle for middle in map(statistics.median, (ours, theirs)))
    return Row(
        name=name,
        ours=mine,
        baseline=other,
        ratio=factor,
        unit=unit,
        peak_mb=peaks[0],
        baseline_peak_mb=peaks[1] if len(peaks) > 1 else None,
        note="; ".join(filter(None, (note, spread))),
    )


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
    before = resident("VmRSS")
    # Forget the peak of the preparation. If the kernel does not allow it, the result is the peak of the whole process.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    work()
    return (resident("VmHWM") - before) / 1e6


@contextmanager
def watched_mb(process: int, *, together: bool) -> Iterator[list[float]]:
    """A list that gets the memory of a process and all below it, several times a second, in 10⁶ bytes.

    Args:
        together: of all of them, in which shared pages count once; otherwise of the largest one.
    """
    samples, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.3):
            with suppress(psutil.NoSuchProcess):
                tree = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
                if together:
                    samples.append(sum(one.memory_full_info().pss for one in tree) / 1e6)
                else:
                    samples.append(max(one.memory_info().rss for one in tree) / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


@contextmanager
def started(
    command: Sequence[str], probe: str, log: Path, patience: float, env: Mapping[str, str] | None = None
) -> Iterator[tuple[int, psutil.Process]]:
    """Port and process of a server that answers. It ends with all that it has started.

    Args:
        command: to which the port is added.
        probe: a path that the server answers with status 200.
        log: the file that gets its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with log.open("wb") as out:
        process = psutil.Popen([*command, str(port)], cwd=ROOT, env=env, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + patience
        while not _answers(port, probe):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer: {log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.3)
        yield port, process
    finally:
        for child in [*(process.children(recursive=True) if process.poll() is None else ()), process]:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()


def _answers(port: int, probe: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", probe)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def resident(field: str, process: int | str = "self") -> int:
    """Bytes of a process by the kernel: VmRSS, which it holds now, or VmHWM, its peak."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {process} has no {field}")


def _measured(function: str, arguments: dict[str, Any]) -> dict[str, float]:
    module, name = function.split(":")
    work = getattr(importlib.import_module(module), name)(**arguments)
    preparing = resident("VmHWM")
    grown = grown_mb(work)
    peak = resident("VmHWM")
    # The first run also had to set up thread pools, kernels and caches.
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "grown_mb": grown, "peak_mb": max(peak, preparing) / 1e6}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], json.loads(sys.argv[2]))))
