"""Two workers with one thread each (gloo, DDP), against one worker."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bench.baselines import BF16
from bench.corpus import corpus
from bench.measure import ROOT, Row, is_quick, ratio
from pipeline.distributed import collectives
from pipeline.models.encoder import GaussianEncoder
from pipeline.objectives import make_objective
from pipeline.objectives.batch_sampler import GlobalBatches
from pipeline.objectives.triplets import triplet_batch
from pipeline.training.step import HEADS, BatchEncoder, DeviceBatch, accumulate_gradients, data_parallel, optimizer_for

BATCH, QUICK_BATCH = 64, 8
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
    seconds = {name: [times for times, _ in values] for name, values in found.items()}
    peaks = {name: max(peak for _, peak in values) for name, values in found.items()}
    rows: list[Row] = []
    for other in shapes[1:]:
        factor, spread = ratio(seconds["two workers"], seconds[other])
        rows.append(
            Row(
                name=f"two workers against {other}",
                ours=BATCH / statistics.median(seconds["two workers"]),
                baseline=BATCH / statistics.median(seconds[other]),
                ratio=factor,
                unit="triplets/s",
                peak_mb=peaks["two workers"],
                baseline_peak_mb=peaks[other],
                note=f"peak of one process; {spread}",
            )
        )
    return rows


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
    encoder = GaussianEncoder.from_backbone(data.params.model, 1)
    alone = BatchEncoder(encoder, bf16=BF16)
    module = data_parallel(alone) if workers > 1 else alone
    optimizer = optimizer_for(encoder, data.params.train, 1e-4, HEADS)
    objective = make_objective("ent+con+rev", "kl", 0.05)
    batches = GlobalBatches(data.triplets[:, 0], np.zeros(len(data.triplets), np.int32), batch, 1)
    times: list[float] = []
    for step in range(steps + 2):
        collectives.barrier()
        start = time.perf_counter()
        rows = batches.rows(step)
        own = triplet_batch(objective, data.triplets[rows], "keep")
        given = DeviceBatch.of(data.store, own, data.params.train, torch.device("cpu"))
        accumulate_gradients(module, given, data.params.train, scale=workers / len(rows))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        collectives.barrier()
        times.append(time.perf_counter() - start)
    if workers > 1:
        # A process that exits with the threads of a group running is now and then aborted.
        dist.destroy_process_group()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"seconds": statistics.median(times[2:]), "peak_mb": int(peak.split()[1]) * 1024 / 1e6}


if __name__ == "__main__":
    print(json.dumps(_worker(int(sys.argv[1]), **json.loads(sys.argv[2]))))
