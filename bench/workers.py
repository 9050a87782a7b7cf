"""Two workers with one thread each (gloo, DDP), against one worker."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from bench.corpus import corpus
from bench.measure import ROOT, Row, compared, is_quick, resident
from bench.training import BATCH, QUICK_BATCH, Product
from pipeline.distributed import collectives
from pipeline.training.step import data_parallel

SHAPES = {"two workers": (2, 1), "one worker, two threads": (1, 2), "one worker, one thread": (1, 1)}


def run(quick: bool) -> list[Row]:
    """The variants of `SHAPES` in turn, with the same global batches of 64."""
    steps, rounds, shapes = (1, 1, list(SHAPES)[::2]) if quick else (6, 3, list(SHAPES))
    # Made here if need be: the workers would all make it at once.
    corpus()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in shapes}
    for _ in range(rounds):
        for name in shapes:
            workers, threads = SHAPES[name]
            found[name].append(_group(workers, threads, steps))
    seconds, peaks = ({name: [pair[k] for pair in pairs] for name, pairs in found.items()} for k in (0, 1))
    return [
        compared(
            f"two workers against {other}",
            "triplets/s",
            [seconds[name] for name in (shapes[0], other)],
            [max(peaks[name]) for name in (shapes[0], other)],
            done=BATCH,
            note="peak of one process",
        )
        for other in shapes[1:]
    ]


def _group(workers: int, threads: int, steps: int) -> tuple[float, float]:
    """Median seconds of a step, and peak memory of a process in 10⁶ bytes."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"workers": workers, "threads": threads, "steps": steps, "rendezvous": f"{folder}/rendezvous"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.workers", str(rank), json.dumps(arguments)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(workers)
        ]
        said = [process.communicate()[0] for process in processes]
    if failed := [process.returncode for process in processes if process.returncode]:
        raise RuntimeError(f"{workers} workers: exit codes {failed}")
    results = [json.loads(text.splitlines()[-1]) for text in said]
    return results[0]["seconds"], max(result["peak_mb"] for result in results)


def _worker(rank: int, workers: int, threads: int, steps: int, rendezvous: str) -> dict[str, float]:
    torch.set_num_threads(threads)
    if workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)
    data, batch = corpus(), QUICK_BATCH if is_quick() else BATCH
    product = Product(data, "kl", batch_size=batch)
    if workers > 1:
        product.module, product.workers = data_parallel(product.module), workers
    times: list[float] = []
    for _ in range(steps + 2):
        collectives.barrier()
        start = time.perf_counter()
        product.step()
        collectives.barrier()
        times.append(time.perf_counter() - start)
    if workers > 1:
        # A process that exits with the threads of a group running is now and then aborted.
        dist.destroy_process_group()
    return {"seconds": statistics.median(times[2:]), "peak_mb": resident("VmHWM") / 1e6}


if __name__ == "__main__":
    print(json.dumps(_worker(int(sys.argv[1]), **json.loads(sys.argv[2]))))
