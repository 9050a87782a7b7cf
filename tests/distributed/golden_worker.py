"""One of two workers that run `golden.by_train`. Started by test_golden."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.distributed.golden import RUNS, by_train, trial_of


def main() -> None:
    rank, spec = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    params, backbone, train, dev, out = (Path(spec[key]) for key in ("params", "backbone", "train", "dev", "out"))
    dist.init_process_group("gloo", init_method=f"file://{out / 'rendezvous'}", rank=rank, world_size=2)
    for run in RUNS:
        found = by_train(run, trial_of(run, params, backbone, train, dev), train, dev, out / f"{run}-trial")
        if rank == 0:
            save_file(found, out / f"{run}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
